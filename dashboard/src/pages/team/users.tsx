// Users of the service.

import { send } from '../../api/client'
import { useUsers } from '../../api/people'
import type { User, Who } from '../../api/types'
import { Action } from '../../ui/action'
import { Field } from '../../ui/field'
import { Loaded } from '../../ui/panel'
import { ACTIONS, Table, type Column } from '../../ui/table'
import { Ago } from '../../ui/time'
import { NotYours, said } from './words'

export function Users({ who }: { who: Who }) {
  const can = who.can?.manage_service
  return can?.allowed ? <Everybody who={who} /> : <NotYours can={can} />
}

function Everybody({ who }: { who: Who }) {
  const can = who.can?.manage_service
  const change = (user: string, body: object) => () => send('PATCH', `/v1/users/${encodeURIComponent(user)}`, body)
  const columns: Column<User>[] = [
    { name: 'name', title: 'User', value: (one) => one.name, cell: (one) => one.name },
    { name: 'is_admin', title: 'Of the service', value: (one) => String(one.is_admin), cell: (one) => (one.is_admin ? 'admin' : <span className="quiet">user</span>) },
    { name: 'created_at', title: 'Made', value: (one) => one.created_at, cell: (one) => <Ago at={one.created_at} /> },
    { name: 'disabled_at', title: 'May come in', value: (one) => one.disabled_at, cell: (one) => (one.disabled_at ? <>⊘ not since <Ago at={one.disabled_at} /></> : '✓ yes') },
    {
      name: ACTIONS, title: 'Change', value: () => null,
      cell: ({ name, is_admin, disabled_at }) => (
        <>
          <Action title={is_admin ? 'Admin no more' : 'Make admin'} asks={is_admin ? `Is ${name} to be no admin any more?` : `Make ${name} an admin? They may do everything then.`} can={can} act={change(name, { is_admin: !is_admin })} />
          <Action title={disabled_at ? 'Let in' : 'Keep out'} asks={disabled_at ? `Let ${name} in again? They need new tokens.` : `Keep ${name} out? All their tokens are revoked.`} danger={!disabled_at} can={can} act={change(name, { is_disabled: !disabled_at })} />
        </>
      ),
    },
  ]
  const add = (form: FormData) => send('POST', '/v1/users', { name: said(form, 'name'), is_admin: form.has('is_admin') })
  return (
    <Loaded query={useUsers()} empty={(all) => (all.length === 0 ? <p>There are no users: whoever is on the service’s machine may do everything.</p> : null)} before={
      <div className="row">
        <Action title="New user" asks="Make a user" can={can} act={add}>
          <Field name="name" label="Name" hint="Then take them into a project, and make them a token." />
          <label><input type="checkbox" name="is_admin" /> An admin of the service, who may do everything</label>
        </Action>
      </div>
    }>
      {(all) => <Table name="users" caption="Users" searchable columns={columns} rows={all} keyOf={(one) => one.name} />}
    </Loaded>
  )
}
