// Something that can be done: a button that opens a question, and says why where it cannot be done.

import { useMutation, useQueryClient } from '@tanstack/react-query'
import { useId, useRef, useState, type FormEvent, type ReactNode } from 'react'
import { flushSync } from 'react-dom'
import { Refused } from '../api/client'
import type { Can } from '../api/types'
import { Explained } from './figure'
import { Trouble } from './panel'

interface ActionProps {
  title: string
  /** The question. */
  asks: string
  can: Can | undefined
  danger?: boolean
  children?: ReactNode
  act: (form: FormData) => Promise<unknown>
}

export function Action({ title, asks, can, danger, children, act }: ActionProps) {
  const dialog = useRef<HTMLDialogElement>(null)
  const form = useRef<HTMLFormElement>(null)
  const id = useId()
  const client = useQueryClient()
  const [times, setTimes] = useState(0)
  const deed = useMutation({
    mutationFn: act,
    // What was said may be a secret, and is forgotten with the dialog.
    gcTime: 0,
    onSuccess: () => {
      dialog.current?.close()
      return client.invalidateQueries()
    },
    // What is refused is so for what is known here no more: it is there before the refusal is, for whoever opens this anew.
    onError: (error) => (error instanceof Refused ? client.invalidateQueries() : undefined),
  })
  if (!can?.allowed)
    return (
      <span className="action refused">
        <Explained by={`Not now: ${can?.reason ?? 'the service does not say why'}.`}>
          <span aria-disabled="true">{title}</span>
        </Explained>
      </span>
    )
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault()
    deed.mutate(new FormData(event.currentTarget))
  }
  const forget = () => {
    form.current?.reset()
    deed.reset()
  }
  return (
    <span className="action">
      <button
        type="button"
        className={danger ? 'danger' : ''}
        onClick={() => {
          // Filled in anew: what was typed and not sent would be sent with what is typed now.
          flushSync(() => setTimes((times) => times + 1))
          dialog.current?.showModal()
        }}
      >
        {title}
      </button>
      <dialog ref={dialog} aria-labelledby={id} onClose={forget}>
        <form key={times} ref={form} onSubmit={submit}>
          <h2 id={id}>{asks}</h2>
          {children}
          {deed.error && <Trouble error={deed.error} means="This was not done." />}
          <p className="row end">
            <button type="button" onClick={() => dialog.current?.close()}>
              Back
            </button>
            <button type="submit" className={danger ? 'danger' : 'primary'} disabled={deed.isPending}>
              {deed.isPending ? 'Asking…' : title}
            </button>
          </p>
        </form>
      </dialog>
    </span>
  )
}
