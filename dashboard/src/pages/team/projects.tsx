// Projects, and who is what in them.

import { useSearchParams } from 'react-router'
import { send } from '../../api/client'
import { useMembers } from '../../api/people'
import { useProjects } from '../../api/queries'
import type { Member, Project, Who } from '../../api/types'
import { Action } from '../../ui/action'
import { Choice, Field } from '../../ui/field'
import { Loaded } from '../../ui/panel'
import { ACTIONS, Table, type Column } from '../../ui/table'
import { Ago } from '../../ui/time'
import { said } from './words'

const ROLES = ['viewer', 'member', 'admin'] as const
const path = (name: string, rest = '') => `/v1/projects/${encodeURIComponent(name)}${rest}`
const memberPath = (name: string, user: string) => path(name, `/members/${encodeURIComponent(user)}`)

export function Projects({ who }: { who: Who }) {
  const [words, setWords] = useSearchParams()
  const of_service = who.can?.manage_service
  const columns: Column<Project>[] = [
    { name: 'name', title: 'Project', value: (one) => one.name, cell: (one) => <button type="button" className="link" onClick={() => setWords((now) => (now.set('project', one.name), now))}>{one.name}</button> },
    { name: 'role', title: 'You are', value: (one) => one.role, cell: (one) => one.role ?? <span className="quiet">not in it</span> },
    { name: 'created_at', title: 'Made', value: (one) => one.created_at, cell: (one) => <Ago at={one.created_at} /> },
    { name: 'archived_at', title: 'New jobs', value: (one) => one.archived_at, cell: (one) => (one.archived_at ? '⊘ archived' : '✓ taken') },
    {
      name: ACTIONS, title: 'Change', value: () => null,
      cell: ({ name, archived_at }) => (
        <Action title={archived_at ? 'Take back' : 'Archive'} asks={archived_at ? `Let ${name} take new jobs again?` : `Archive ${name}? It takes no new jobs then; those that run go on.`}
          can={of_service} act={() => send('PATCH', path(name), { is_archived: !archived_at })} />
      ),
    },
  ]
  return (
    <Loaded query={useProjects()} empty={(all) => (all.length === 0 ? <p>You are in no project.</p> : null)} before={
      <div className="row">
        <Action title="New project" asks="Make a project" can={of_service} act={(form) => send('POST', '/v1/projects', { name: said(form, 'name') })}>
          <Field name="name" label="Name" hint="Small letters, digits and -." />
        </Action>
      </div>
    }>
      {(all) => {
        const chosen = all.find((one) => one.name === words.get('project')) ?? all[0]
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
  const set = (user: string) => (form: FormData) => send('PUT', memberPath(project.name, user || said(form, 'user')), { role: said(form, 'role') })
  const columns: Column<Member>[] = [
    { name: 'user', title: 'User', value: (one) => one.user, cell: (one) => one.user },
    { name: 'role', title: 'Role', value: (one) => one.role, cell: (one) => one.role },
    {
      name: ACTIONS, title: 'Change', value: () => null,
      cell: ({ user, role }) => (
        <>
          <Action title="Role" asks={`What is ${user} to be in ${project.name}?`} can={can} act={set(user)}>
            <Choice name="role" label="Role" value={role} options={ROLES} />
          </Action>
          <Action title="Take out" asks={`Take ${user} out of ${project.name}? Their jobs stay.`} danger can={can} act={() => send('DELETE', memberPath(project.name, user))} />
        </>
      ),
    },
  ]
  return (
    <>
      <h2>Members of {project.name}</h2>
      <div className="row">
        <Action title="Take in" asks={`Take somebody into ${project.name}`} can={can} act={set('')}>
          <Field name="user" label="User" />
          <Choice name="role" label="Role" value="member" options={ROLES} hint="viewer looks, member submits and steers, admin manages." />
        </Action>
      </div>
      <Loaded query={useMembers(project.name)} empty={(all) => (all.length === 0 ? <p>Nobody is in it; admins of the service may do everything.</p> : null)}>
        {(all) => <Table name="members" caption={`Members of ${project.name}`} columns={columns} rows={all} keyOf={(one) => one.user} />}
      </Loaded>
    </>
  )
}
