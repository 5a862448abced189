// Where the service asks who is there: a token becomes a session, and is kept nowhere.

import { useMutation, useQueryClient } from '@tanstack/react-query'
import type { FormEvent } from 'react'
import { send } from '../api/client'
import type { Session } from '../api/types'
import { Labelled } from '../ui/field'
import { Trouble } from '../ui/panel'

export function LoginPage({ why }: { why: string }) {
  const client = useQueryClient()
  const login = useMutation({
    mutationFn: (token: string) => send<Session>('POST', '/v1/session', undefined, { Authorization: `Bearer ${token}` }),
    onSuccess: () => client.resetQueries(),
  })
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault()
    login.mutate(String(new FormData(event.currentTarget).get('token') ?? '').trim())
  }
  return (
    <section className="panel login" aria-labelledby="login">
      <title>Log in · Holdfast</title>
      <h1 id="login">Log in</h1>
      <p>{why}</p>
      <form onSubmit={submit}>
        <Labelled label="Access token" hint={<><code>holdfast tokens add</code> makes one. The owner’s is in <code>HOLDFAST_HOME/token</code>.</>}>
          {(named) => <input {...named} name="token" type="password" autoComplete="current-password" required autoFocus />}
        </Labelled>
        {login.error && <Trouble error={login.error} />}
        <p className="row end">
          <button type="submit" className="primary" disabled={login.isPending}>
            Log in
          </button>
        </p>
      </form>
    </section>
  )
}
