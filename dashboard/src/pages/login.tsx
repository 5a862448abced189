// The login page. It leads to the identity provider, or exchanges an access token for a session and does not store the token.

import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import type { FormEvent } from 'react'
import { get, send, withQuery } from '../api/client'
import type { Session, SignInOptions } from '../api/types'
import { Labelled } from '../ui/field'
import { ErrorMessage } from '../ui/panel'

export function LoginPage({ why }: { why: string }) {
  const client = useQueryClient()
  const login = useMutation({
    mutationFn: (token: string) => send<Session>('POST', '/v1/session', undefined, { Authorization: `Bearer ${token}` }),
    onSuccess: () => client.resetQueries(),
  })
  const options = useQuery({ queryKey: ['sign-in'], queryFn: ({ signal }) => get<SignInOptions>('/v1/sign-in', signal), staleTime: Infinity }).data
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault()
    login.mutate(String(new FormData(event.currentTarget).get('token') ?? '').trim())
  }
  return (
    <section className="panel login" aria-labelledby="login">
      <title>Log in · Holdfast</title>
      <h1 id="login">Log in</h1>
      <p>{why}</p>
      {options?.failure && <p className="note warn" role="alert">The sign-in failed: {options.failure}</p>}
      {options?.provider && (
        // A link and not a request: the browser has to leave for the provider.
        <p className="row">
          <a className="button primary" href={withQuery('/sign-in', { return_to: `${location.pathname}${location.search}` })}>Sign in with {options.provider}</a>
        </p>
      )}
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
