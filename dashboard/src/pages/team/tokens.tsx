// Access tokens.

import { useState } from 'react'
import { useSearchParams } from 'react-router'
import { send } from '../../api/client'
import { useTokens } from '../../api/people'
import type { NewToken, Token, CurrentUser } from '../../api/types'
import { Action } from '../../ui/action'
import { Field } from '../../ui/field'
import { Loaded } from '../../ui/panel'
import { ACTIONS, Table, type Column } from '../../ui/table'
import { Ago } from '../../ui/time'
import { formText } from './shared'

const SCOPES = ['read', 'write', 'admin'] as const
/** The service's default lifetime. */
const DAYS = 90

export function Tokens({ who }: { who: CurrentUser }) {
  const [params, setParams] = useSearchParams()
  const [made, setMade] = useState<NewToken | null>(null)
  const of_all = params.get('tokens') === 'all'
  const can = who.can?.manage_tokens
  const add = async (form: FormData) => {
    const of = { user: formText(form, 'user'), project: formText(form, 'project') }
    const named = Object.fromEntries(Object.entries(of).filter(([, value]) => value))
    const scopes = SCOPES.filter((scope) => form.has(scope))
    setMade(await send<NewToken>('POST', '/v1/tokens', { name: formText(form, 'name'), ...named, scopes, days: Number(formText(form, 'days')) }))
  }
  const rotate = (token: Token) => async () => setMade(await send<NewToken>('POST', `/v1/tokens/${token.id}/rotate`))
  const columns: Column<Token>[] = [
    { name: 'name', title: 'Token', value: (one) => one.name, cell: (one) => <>{one.name} <small className="id">{one.id}</small></> },
    { name: 'user', title: 'User', value: (one) => one.user, cell: (one) => one.user ?? 'service owner' },
    { name: 'project', title: 'Project', value: (one) => one.project, cell: (one) => one.project ?? <span className="quiet">all projects</span> },
    { name: 'scopes', title: 'Scopes', value: (one) => one.scopes.join(' '), cell: (one) => one.scopes.join(', ') },
    { name: 'last_used_at', title: 'Last used', value: (one) => one.last_used_at, cell: (one) => (one.last_used_at ? <Ago at={one.last_used_at} /> : <span className="quiet">never</span>) },
    { name: 'is_good', title: 'Status', value: (one) => String(one.is_good), cell: (one) => <TokenStatus token={one} /> },
    {
      name: ACTIONS, title: 'Actions', value: () => null,
      cell: (one) => one.is_good && (
        <>
          <Action title="Rotate" asks={`Rotate ${one.name}? The current token stays valid for one day.`} can={can} act={rotate(one)} />
          <Action title="Revoke" asks={`Revoke ${one.name}? Programs that use it lose access immediately.`} danger can={can} act={() => send('DELETE', `/v1/tokens/${one.id}`)} />
        </>
      ),
    },
  ]
  return (
    <>
      {made && <NewTokenText made={made} close={() => setMade(null)} />}
      <Loaded query={useTokens(of_all)} empty={(all) => (all.length === 0 ? <p>No tokens.</p> : null)} before={
        <div className="row spread">
          <Action title="New token" asks="New token" can={can} act={add}>
            <Field name="name" label="Name" />
            {who.can?.manage_service?.allowed && <Field name="user" label="User" hint="Empty: yourself." />}
            <Field name="project" label="Project" hint="Limits the token to one project. Empty: all." />
            <fieldset className="row">
              <legend>Scopes</legend>
              {SCOPES.map((scope) => <label key={scope}><input type="checkbox" name={scope} defaultChecked={scope !== 'admin'} /> {scope}</label>)}
            </fieldset>
            <Field name="days" label="Lifetime (days)" type="number" value={DAYS} />
          </Action>
          {who.can?.manage_service?.allowed && (
            <label><input type="checkbox" checked={of_all} onChange={(event) => setParams((now) => (event.target.checked ? now.set('tokens', 'all') : now.delete('tokens'), now), { replace: true })} /> tokens of all users</label>
          )}
        </div>
      }>
        {(all) => <Table name="tokens" caption="Tokens" searchable columns={columns} rows={all} keyOf={(one) => one.id} />}
      </Loaded>
    </>
  )
}

function TokenStatus({ token }: { token: Token }) {
  if (token.is_good) return token.expires_at ? <>✓ valid, expires <Ago at={token.expires_at} /></> : <>✓ valid, no expiry</>
  if (token.revoked_at) return <>⊘ revoked <Ago at={token.revoked_at} /></>
  return token.expires_at ? <>⊘ expired <Ago at={token.expires_at} /></> : <>⊘ not valid</>
}

function NewTokenText({ made, close }: { made: NewToken; close: () => void }) {
  return (
    <div className="note warn" role="alert">
      <p>Token {made.kept.name}. It is shown only once: copy it now.</p>
      <p><code className="secret">{made.token}</code></p>
      <p className="row end"><button type="button" onClick={close}>Done</button></p>
    </div>
  )
}
