// The limits of a job in a form: to be changed, or to be other ones in a copy of it.

import { useState } from 'react'
import { askBefore, Refused, send } from '../../api/client'
import type { Job } from '../../api/types'
import { Field } from '../../ui/field'

const LIMITS: { name: keyof Job['limits']; label: string; hint: string; whole?: true }[] = [
  { name: 'max_cost_usd', label: 'Most that its nodes may cost, in US dollars', hint: 'Empty: no limit.' },
  { name: 'max_hourly_cost_usd', label: 'The same for an hour', hint: 'Empty: no limit.' },
  { name: 'deadline', label: 'Deadline', hint: 'A duration from its submission, such as 48h, or a time. Empty: none.' },
  { name: 'max_duration', label: 'How long it may have nodes, in all', hint: 'Such as 40h. Empty: no limit.' },
  { name: 'max_wait', label: 'How long it may wait for nodes', hint: 'Empty: 24h.' },
  { name: 'max_failures', label: 'How often the program itself may fail', hint: '1 to 100. Empty: 3.', whole: true },
  { name: 'max_fruitless', label: 'How many placements in a row may make no progress', hint: '1 to 1000. Empty: 10.', whole: true },
  { name: 'max_stall', label: 'How long it may make no step', hint: 'auto, off, or such as 20m. Empty: auto.' },
]

/** The limits as they are when it is opened, each to be changed. Facts that come later do not move them. */
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

/** Limits that were changed in a form; what is as it was is not sent. */
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

/** Tries to change what others change at the same time. Each fails by a fact that came within the moment between two requests. */
const TRIES = 5

/** Give a job other limits, if those that there are are still those that were seen. Facts that come meanwhile are in nobody's way. */
export async function relimit(id: string, form: FormData): Promise<Job | null> {
  const [seen, changes] = [seenIn(form), changesOf(form)]
  const path = `/v1/jobs/${id}`
  for (let tries = 1; ; tries++) {
    const answer = await askBefore(path)
    const { limits } = (await answer.json()) as Job
    if (LIMITS.some(({ name }) => limits[name] !== seen[name]))
      throw new Refused(412, 'Its limits are others by now', 'They have been changed since this was opened: by somebody else, or by you, where the answer was lost. Nothing is changed now. Go back, and open it anew to see them.', null, null)
    try {
      return await send<Job>('PATCH', `${path}/limits`, changes, { 'If-Match': answer.headers.get('ETag') ?? '*' })
    } catch (error) {
      if (!(error instanceof Refused && error.status === 412) || tries === TRIES) throw error
    }
  }
}
