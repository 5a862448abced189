// Access tokens: made, shown this once, rotated, revoked.

import { useState } from 'react'
import { useSearchParams } from 'react-router'
import { send } from '../../api/client'
import { useTokens } from '../../api/people'
import type { NewToken, Token, Who } from '../../api/types'
import { Action } from '../../ui/action'
import { Field } from '../../ui/field'
import { Loaded } from '../../ui/panel'
import { ACTIONS, Table, type Column } from '../../ui/table'
import { Ago } from '../../ui/time'
import { said } from './words'

const SCOPES = ['read', 'write', 'admin'] as const
/** As the service has it where nobody says. */
const DAYS = 90

export function Tokens({ who }: { who: Who }) {
  const [words, setWords] = useSearchParams()
  const [made, setMade] = useState<NewToken | null>(null)
  const everybodys = words.get('tokens') === 'all'
  const can = who.can?.manage_tokens
  const add = async (form: FormData) => {
    const of = { user: said(form, 'user'), project: said(form, 'project') }
    const named = Object.fromEntries(Object.entries(of).filter(([, value]) => value))
    const scopes = SCOPES.filter((scope) => form.has(scope))
    setMade(await send<NewToken>('POST', '/v1/tokens', { name: said(form, 'name'), ...named, scopes, days: Number(said(form, 'days')) }))
  }
  const rotate = (token: Token) => async () => setMade(await send<NewToken>('POST', `/v1/tokens/${token.id}/rotate`))
  const columns: Column<Token>[] = [
    { name: 'name', title: 'For', value: (one) => one.name, cell: (one) => <>{one.name} <small className="id">{one.id}</small></> },
    { name: 'user', title: 'Of', value: (one) => one.user, cell: (one) => one.user ?? 'the owner' },
    { name: 'project', title: 'Good for', value: (one) => one.project, cell: (one) => one.project ?? <span className="quiet">all projects</span> },
    { name: 'scopes', title: 'May', value: (one) => one.scopes.join(' '), cell: (one) => one.scopes.join(', ') },
    { name: 'last_used_at', title: 'Used', value: (one) => one.last_used_at, cell: (one) => (one.last_used_at ? <Ago at={one.last_used_at} /> : <span className="quiet">not yet</span>) },
    { name: 'is_good', title: 'Lets in', value: (one) => String(one.is_good), cell: (one) => <Standing token={one} /> },
    {
      name: ACTIONS, title: 'Change', value: () => null,
      cell: (one) => one.is_good && (
        <>
          <Action title="Rotate" asks={`Another text for ${one.name}? That of now goes on for a day.`} can={can} act={rotate(one)} />
          <Action title="Revoke" asks={`Revoke ${one.name}? Whatever uses it is locked out at once.`} danger can={can} act={() => send('DELETE', `/v1/tokens/${one.id}`)} />
        </>
      ),
    },
  ]
  return (
    <>
      {made && <NewText made={made} close={() => setMade(null)} />}
      <Loaded query={useTokens(everybodys)} empty={(all) => (all.length === 0 ? <p>There is no token yet.</p> : null)} before={
        <div className="row spread">
          <Action title="New token" asks="Make a token" can={can} act={add}>
            <Field name="name" label="What it is for" />
            {who.can?.manage_service?.allowed && <Field name="user" label="Whose" hint="Empty: your own." />}
            <Field name="project" label="The only project that it is good for" hint="Empty: all." />
            <fieldset className="row">
              <legend>What it may be used for</legend>
              {SCOPES.map((scope) => <label key={scope}><input type="checkbox" name={scope} defaultChecked={scope !== 'admin'} /> {scope}</label>)}
            </fieldset>
            <Field name="days" label="Days that it is good" type="number" value={DAYS} />
          </Action>
          {who.can?.manage_service?.allowed && (
            <label><input type="checkbox" checked={everybodys} onChange={(event) => setWords((now) => (event.target.checked ? now.set('tokens', 'all') : now.delete('tokens'), now), { replace: true })} /> those of everybody</label>
          )}
        </div>
      }>
        {(all) => <Table name="tokens" caption="Tokens" searchable columns={columns} rows={all} keyOf={(one) => one.id} />}
      </Loaded>
    </>
  )
}

function Standing({ token }: { token: Token }) {
  if (token.is_good) return token.expires_at ? <>✓ ends <Ago at={token.expires_at} /></> : <>✓ for good</>
  if (token.revoked_at) return <>⊘ revoked <Ago at={token.revoked_at} /></>
  return token.expires_at ? <>⊘ over since <Ago at={token.expires_at} /></> : <>⊘ no more</>
}

function NewText({ made, close }: { made: NewToken; close: () => void }) {
  return (
    <div className="note warn" role="alert">
      <p>The text of {made.kept.name}. It is shown this once: keep it now.</p>
      <p><code className="secret">{made.token}</code></p>
      <p className="row end"><button type="button" onClick={close}>I have it</button></p>
    </div>
  )
}
