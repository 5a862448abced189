// Users of the service.

import { send } from '../../api/client'
import { useUsers } from '../../api/people'
import type { User, CurrentUser } from '../../api/types'
import { Action } from '../../ui/action'
import { Field } from '../../ui/field'
import { Loaded } from '../../ui/panel'
import { ACTIONS, Table, type Column } from '../../ui/table'
import { Ago } from '../../ui/time'
import { NotPermitted, formText } from './shared'

export function Users({ who }: { who: CurrentUser }) {
  const can = who.can?.manage_service
  return can?.allowed ? <UserList who={who} /> : <NotPermitted can={can} />
}

function UserList({ who }: { who: CurrentUser }) {
  const can = who.can?.manage_service
  const change = (user: string, body: object) => () => send('PATCH', `/v1/users/${encodeURIComponent(user)}`, body)
  const columns: Column<User>[] = [
    { name: 'name', title: 'User', value: (one) => one.name, cell: (one) => one.name },
    { name: 'is_admin', title: 'Role', value: (one) => String(one.is_admin), cell: (one) => (one.is_admin ? 'admin' : <span className="quiet">user</span>) },
    { name: 'created_at', title: 'Created', value: (one) => one.created_at, cell: (one) => <Ago at={one.created_at} /> },
    { name: 'disabled_at', title: 'Access', value: (one) => one.disabled_at, cell: (one) => (one.disabled_at ? <>⊘ disabled <Ago at={one.disabled_at} /></> : '✓ enabled') },
    {
      name: ACTIONS, title: 'Actions', value: () => null,
      cell: ({ name, is_admin, disabled_at }) => (
        <>
          <Action title={is_admin ? 'Revoke admin' : 'Make admin'} asks={is_admin ? `Revoke the admin role of ${name}?` : `Make ${name} a service admin, with access to everything?`} can={can} act={change(name, { is_admin: !is_admin })} />
          <Action title={disabled_at ? 'Enable' : 'Disable'} asks={disabled_at ? `Enable ${name}? New tokens are needed.` : `Disable ${name}? All their tokens are revoked.`} danger={!disabled_at} can={can} act={change(name, { is_disabled: !disabled_at })} />
        </>
      ),
    },
  ]
  const add = (form: FormData) => send('POST', '/v1/users', { name: formText(form, 'name'), is_admin: form.has('is_admin') })
  return (
    <Loaded query={useUsers()} empty={(all) => (all.length === 0 ? <p>No users: everyone on the service’s machine has full access.</p> : null)} before={
      <div className="row">
        <Action title="New user" asks="New user" can={can} act={add}>
          <Field name="name" label="Name" hint="Then add the user to a project and create a token." />
          <label><input type="checkbox" name="is_admin" /> Service admin, with access to everything</label>
        </Action>
      </div>
    }>
      {(all) => <Table name="users" caption="Users" searchable columns={columns} rows={all} keyOf={(one) => one.name} />}
    </Loaded>
  )
}
