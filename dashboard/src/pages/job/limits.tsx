// The limits of a job as form fields, for a change or for a copy.

import { useState } from 'react'
import { preflight, ResponseError, send } from '../../api/client'
import type { Job } from '../../api/types'
import { Field } from '../../ui/field'

const LIMITS: { name: keyof Job['limits']; label: string; hint: string; whole?: true }[] = [
  { name: 'max_cost_usd', label: 'Maximum cost (USD)', hint: 'Empty: no limit.' },
  { name: 'max_hourly_cost_usd', label: 'Maximum cost per hour (USD)', hint: 'Empty: no limit.' },
  { name: 'deadline', label: 'Deadline', hint: 'Duration since submission, such as 48h, or a time. Empty: none.' },
  { name: 'max_duration', label: 'Maximum run time', hint: 'Time with nodes, such as 40h. Empty: no limit.' },
  { name: 'max_wait', label: 'Maximum wait for nodes', hint: 'Empty: 24h.' },
  { name: 'max_failures', label: 'Maximum program failures', hint: '1 to 100. Empty: 3.', whole: true },
  { name: 'max_fruitless', label: 'Maximum consecutive attempts without progress', hint: '1 to 1000. Empty: 10.', whole: true },
  { name: 'max_stall', label: 'Maximum stall', hint: 'Time without a step: auto, off, or such as 20m. Empty: auto.' },
]

/** The limits at the time the form opens. Later events do not change the fields. */
export function LimitFields({ limits }: { limits: Job['limits'] }) {
  const [seen] = useState(limits)
  return (
    <>
      <input type="hidden" name="seen" value={JSON.stringify(seen)} />
      {LIMITS.map(({ name, label, hint }) => <Field key={name} name={name} label={label} hint={hint} value={seen[name] ?? null} />)}
    </>
  )
}

const seenIn = (form: FormData): Job['limits'] => JSON.parse(String(form.get('seen'))) as Job['limits']

/** Changed limits only. */
export function changesOf(form: FormData): Record<string, string | number | null> {
  const changes: Record<string, string | number | null> = {}
  const limits = seenIn(form)
  for (const { name, whole } of LIMITS) {
    const text = String(form.get(name) ?? '').trim()
    if (text === String(limits[name] ?? '')) continue
    changes[name] = text === '' ? null : whole ? Number(text) : text
  }
  return changes
}

/** Retries after a concurrent event between the read and the write. */
const TRIES = 5

/** Change the limits of a job if they still match the form. Unrelated events in between are ignored. */
export async function changeLimits(id: string, form: FormData): Promise<Job | null> {
  const [seen, changes] = [seenIn(form), changesOf(form)]
  const path = `/v1/jobs/${id}`
  for (let tries = 1; ; tries++) {
    const answer = await preflight(path)
    const { limits } = (await answer.json()) as Job
    if (LIMITS.some(({ name }) => limits[name] !== seen[name]))
      throw new ResponseError(412, 'Limits changed in the meantime', 'Another user changed them, or your earlier change succeeded without an answer. Nothing was changed now. Reopen the dialog to see the current limits.', null, null)
    try {
      return await send<Job>('PATCH', `${path}/limits`, changes, { 'If-Match': answer.headers.get('ETag') ?? '*' })
    } catch (error) {
      if (!(error instanceof ResponseError && error.status === 412) || tries === TRIES) throw error
    }
  }
}
