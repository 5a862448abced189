// The login page. It exchanges an access token for a session and does not store the token.

import { useMutation, useQueryClient } from '@tanstack/react-query'
import type { FormEvent } from 'react'
import { send } from '../api/client'
import type { Session } from '../api/types'
import { Labelled } from '../ui/field'
import { ErrorMessage } from '../ui/panel'

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
        <Labelled label="Access token" hint={<>Create one with <code>holdfast tokens add</code>. The owner’s token is in <code>HOLDFAST_HOME/token</code>.</>}>
          {(named) => <input {...named} name="token" type="password" autoComplete="current-password" required autoFocus />}
        </Labelled>
        {login.error && <ErrorMessage error={login.error} />}
        <p className="row end">
          <button type="submit" className="primary" disabled={login.isPending}>
            Log in
          </button>
        </p>
      </form>
    </section>
  )
}
