// A button that opens a confirmation dialog, or explains why its action is not allowed.

import { useMutation, useQueryClient } from '@tanstack/react-query'
import { useEffect, useId, useRef, useState, type FormEvent, type ReactNode } from 'react'
import { flushSync } from 'react-dom'
import { useSearchParams } from 'react-router'
import { ResponseError } from '../api/client'
import type { Can } from '../api/types'
import { Explained } from './number'
import { ErrorMessage } from './panel'

interface ActionProps {
  title: string
  /** Title of the dialog. */
  asks: string
  /** Label of the submit button; `title` without it. */
  confirm?: string
  /** Label of the button that closes the dialog. */
  back?: string
  can: Can | undefined
  danger?: boolean
  children?: ReactNode
  act: (form: FormData) => Promise<unknown>
  /** Value of the address parameter `action` that opens the dialog. */
  opens?: string
  /** Whether the form may be sent. */
  ready?: boolean
  wide?: boolean
  /** Called when the dialog has opened or closed. */
  onShow?: (is_open: boolean) => void
}

export function Action({ title, asks, confirm = title, back = 'Back', can, danger, children, act, opens, ready = true, wide, onShow }: ActionProps) {
  const dialog = useRef<HTMLDialogElement>(null)
  const form = useRef<HTMLFormElement>(null)
  const id = useId()
  const client = useQueryClient()
  const [times, setTimes] = useState(0)
  const [params, setParams] = useSearchParams()
  const is_called = opens !== undefined && params.get('action') === opens
  useEffect(() => {
    if (!is_called) return
    dialog.current?.showModal()
    onShow?.(true)
    setParams((now) => (now.delete('action'), now), { replace: true })
  }, [is_called, setParams])
  const mutation = useMutation({
    mutationFn: act,
    // The input may contain a secret, so it is dropped with the dialog.
    gcTime: 0,
    onSuccess: () => {
      dialog.current?.close()
      return client.invalidateQueries()
    },
    // A refusal shows that the data of this page is out of date.
    onError: (error) => (error instanceof ResponseError ? client.invalidateQueries() : undefined),
  })
  if (!can?.allowed)
    return (
      <span className="action refused">
        <Explained by={`Not now: ${can?.reason ?? 'the service gave no reason'}.`}>
          <span aria-disabled="true">{title}</span>
        </Explained>
      </span>
    )
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault()
    mutation.mutate(new FormData(event.currentTarget))
  }
  const reset = () => {
    form.current?.reset()
    mutation.reset()
    onShow?.(false)
  }
  return (
    <span className="action">
      <button
        type="button"
        className={danger ? 'danger' : ''}
        onClick={() => {
          // A fresh form: text that was typed earlier and not sent must not be sent now.
          flushSync(() => setTimes((times) => times + 1))
          dialog.current?.showModal()
          onShow?.(true)
        }}
      >
        {title}
      </button>
      <dialog ref={dialog} className={wide ? 'wide' : ''} aria-labelledby={id} onClose={reset}>
        <form key={times} ref={form} onSubmit={submit}>
          <h2 id={id}>{asks}</h2>
          {children}
          {mutation.error && <ErrorMessage error={mutation.error} means={`Not done: ${confirm}`} />}
          <p className="row end">
            <button type="button" onClick={() => dialog.current?.close()}>
              {back}
            </button>
            <button type="submit" className={danger ? 'danger' : 'primary'} disabled={mutation.isPending || !ready}>
              {mutation.isPending ? 'Sending…' : confirm}
            </button>
          </p>
        </form>
      </dialog>
    </span>
  )
}
