// Projects and their members.

import { useSearchParams } from 'react-router'
import { send } from '../../api/client'
import { useMembers } from '../../api/people'
import { useProjects } from '../../api/queries'
import type { Member, Project, CurrentUser } from '../../api/types'
import { Action } from '../../ui/action'
import { Choice, Field } from '../../ui/field'
import { Loaded } from '../../ui/panel'
import { ACTIONS, Table, type Column } from '../../ui/table'
import { Ago } from '../../ui/time'
import { formText } from './shared'

const ROLES = ['viewer', 'member', 'admin'] as const
const path = (name: string, rest = '') => `/v1/projects/${encodeURIComponent(name)}${rest}`
const memberPath = (name: string, user: string) => path(name, `/members/${encodeURIComponent(user)}`)

export function Projects({ who }: { who: CurrentUser }) {
  const [params, setParams] = useSearchParams()
  const of_service = who.can?.manage_service
  const columns: Column<Project>[] = [
    { name: 'name', title: 'Project', value: (one) => one.name, cell: (one) => <button type="button" className="link" onClick={() => setParams((now) => (now.set('project', one.name), now))}>{one.name}</button> },
    { name: 'role', title: 'Your role', value: (one) => one.role, cell: (one) => one.role ?? <span className="quiet">none</span> },
    { name: 'created_at', title: 'Created', value: (one) => one.created_at, cell: (one) => <Ago at={one.created_at} /> },
    { name: 'archived_at', title: 'New jobs', value: (one) => one.archived_at, cell: (one) => (one.archived_at ? '⊘ archived' : '✓ accepted') },
    {
      name: ACTIONS, title: 'Actions', value: () => null,
      cell: ({ name, archived_at }) => (
        <Action title={archived_at ? 'Restore' : 'Archive'} asks={archived_at ? `Restore ${name}? It accepts new jobs again.` : `Archive ${name}? It accepts no new jobs; running ones continue.`}
          can={of_service} act={() => send('PATCH', path(name), { is_archived: !archived_at })} />
      ),
    },
  ]
  return (
    <Loaded query={useProjects()} empty={(all) => (all.length === 0 ? <p>You are not a member of any project.</p> : null)} before={
      <div className="row">
        <Action title="New project" asks="New project" can={of_service} act={(form) => send('POST', '/v1/projects', { name: formText(form, 'name') })}>
          <Field name="name" label="Name" hint="Lower-case letters, digits and -." />
        </Action>
      </div>
    }>
      {(all) => {
        const chosen = all.find((one) => one.name === params.get('project')) ?? all[0]
        return (
          <>
            <Table name="projects" caption="Projects" columns={columns} rows={all} keyOf={(one) => one.name} />
            {chosen && <Members project={chosen} />}
          </>
        )
      }}
    </Loaded>
  )
}

function Members({ project }: { project: Project }) {
  const can = project.can?.manage_members
  const set = (user: string) => (form: FormData) => send('PUT', memberPath(project.name, user || formText(form, 'user')), { role: formText(form, 'role') })
  const columns: Column<Member>[] = [
    { name: 'user', title: 'User', value: (one) => one.user, cell: (one) => one.user },
    { name: 'role', title: 'Role', value: (one) => one.role, cell: (one) => one.role },
    {
      name: ACTIONS, title: 'Actions', value: () => null,
      cell: ({ user, role }) => (
        <>
          <Action title="Role" asks={`Role of ${user} in ${project.name}`} can={can} act={set(user)}>
            <Choice name="role" label="Role" value={role} options={ROLES} />
          </Action>
          <Action title="Remove" asks={`Remove ${user} from ${project.name}? Their jobs are kept.`} danger can={can} act={() => send('DELETE', memberPath(project.name, user))} />
        </>
      ),
    },
  ]
  return (
    <>
      <h2>Members of {project.name}</h2>
      <div className="row">
        <Action title="Add member" asks={`Add a member to ${project.name}`} can={can} act={set('')}>
          <Field name="user" label="User" />
          <Choice name="role" label="Role" value="member" options={ROLES} hint="viewer: read; member: submit and control jobs; admin: manage the project." />
        </Action>
      </div>
      <Loaded query={useMembers(project.name)} empty={(all) => (all.length === 0 ? <p>No members. Service admins have access to every project.</p> : null)}>
        {(all) => <Table name="members" caption={`Members of ${project.name}`} columns={columns} rows={all} keyOf={(one) => one.user} />}
      </Loaded>
    </>
  )
}
