// The limits of a job in a form: to be changed, or to be other ones in a copy of it.

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

export const LimitFields = ({ limits }: { limits: Job['limits'] }) =>
  LIMITS.map(({ name, label, hint }) => <Field key={name} name={name} label={label} hint={hint} value={limits[name] ?? null} />)

/** Limits that were changed in a form; what is as it was is not sent. */
export function changesOf(form: FormData, limits: Job['limits']): Record<string, string | number | null> {
  const changes: Record<string, string | number | null> = {}
  for (const { name, whole } of LIMITS) {
    const text = String(form.get(name) ?? '').trim()
    if (text === String(limits[name] ?? '')) continue
    changes[name] = text === '' ? null : whole ? Number(text) : text
  }
  return changes
}
