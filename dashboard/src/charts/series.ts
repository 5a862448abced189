// Curves of all attempts as columns for a chart over steps. Pure.

import type { Attempt, Bucket } from '../api/types'
import { lossKind, type LossKind } from '../vocabulary'
import type { Window } from './lanes'

export interface Series {
  attempt: number
  /** Whether the work of these steps was lost, as the service has it. */
  rolled_back: boolean
  values: (number | null)[]
}

export interface Columns {
  steps: number[]
  series: Series[]
  /** Points that are not finite, and so in no curve. */
  not_finite: number
}

/** A value at a step, of so many points. */
interface Spot {
  bucket: Bucket
  value: number | null
}

/** A curve: one series for each attempt, and one more for what it did in vain. */
export function columnsOf(buckets: Bucket[], window: Window | null): Columns {
  return arranged(buckets.map((bucket) => ({ bucket, value: bucket.mean })), window)
}

/** How fast steps came from one bucket of an attempt to the next, in steps a second. */
export function paceOf(buckets: Bucket[], window: Window | null): Columns {
  const before = new Map<number, Bucket>()
  const spots = [...buckets]
    .sort((a, b) => a.attempt - b.attempt || a.last_step - b.last_step)
    .map((bucket) => {
      const last = before.get(bucket.attempt)
      before.set(bucket.attempt, bucket)
      const [from, at] = last ? [last.last_step, last.last_at] : [bucket.first_step, bucket.first_at]
      const seconds = (Date.parse(bucket.last_at) - Date.parse(at)) / 1000
      return { bucket, value: seconds > 0 && bucket.last_step > from ? (bucket.last_step - from) / seconds : null }
    })
  return arranged(spots.filter((spot) => spot.value !== null), window)
}

function arranged(spots: Spot[], window: Window | null): Columns {
  const within = spots.filter(
    ({ bucket }) => !window || (Date.parse(bucket.last_at) >= window.from && Date.parse(bucket.first_at) <= window.to),
  )
  const steps = [...new Set(within.map(({ bucket }) => bucket.last_step))].sort((a, b) => a - b)
  const place = new Map(steps.map((step, at) => [step, at]))
  const found = new Map<string, Series>()
  for (const { bucket, value } of within) {
    const key = `${bucket.attempt}/${bucket.lost}`
    const series = found.get(key) ?? { attempt: bucket.attempt, rolled_back: bucket.lost, values: steps.map(() => null) }
    series.values[place.get(bucket.last_step) ?? 0] = value
    found.set(key, series)
  }
  const order = (a: Series, b: Series) => a.attempt - b.attempt || Number(a.rolled_back) - Number(b.rolled_back)
  return { steps, series: [...found.values()].sort(order), not_finite: within.reduce((sum, { bucket }) => sum + bucket.not_finite, 0) }
}

/** A step at which something happened to an attempt. */
export interface StepMark {
  kind: LossKind | 'resume'
  attempt: number
  step: number
}

/** Steps at which attempts ended early, each at the last one that it reported, and at which later attempts resumed. */
export const stepMarksOf = (attempts: Attempt[]): StepMark[] =>
  attempts.flatMap(({ attempt, cause, first_step, last_step }) => [
    ...(attempt > 1 && first_step !== null ? [{ kind: 'resume' as const, attempt, step: first_step }] : []),
    ...(cause !== null && last_step !== null ? [{ kind: lossKind(cause), attempt, step: last_step }] : []),
  ])

/** How many marks of each kind there would be if all attempts had reported steps. */
export function marksDue(attempts: Attempt[]): Partial<Record<StepMark['kind'], number>> {
  const due: Partial<Record<StepMark['kind'], number>> = {}
  for (const { cause } of attempts) if (cause !== null) due[lossKind(cause)] = (due[lossKind(cause)] ?? 0) + 1
  return due
}

/** Those of them that lie between the first and the last of some steps. */
export const marksIn = <One extends { step: number }>(marks: One[], steps: number[]): One[] =>
  marks.filter(({ step }) => step >= (steps[0] ?? Infinity) && step <= (steps.at(-1) ?? -Infinity))

/** From when to when an attempt made some steps, all attempts together; null where none made any of them. */
export function momentsOf(buckets: Bucket[], [from, to]: [number, number]): Window | null {
  const made = buckets.filter(({ first_step, last_step }) => last_step >= from && first_step <= to)
  if (made.length === 0) return null
  return { from: Math.min(...made.map((one) => Date.parse(one.first_at))), to: Math.max(...made.map((one) => Date.parse(one.last_at))) }
}

export const PACE = 'steps per second'

const isLoss = (name: string) => /loss/i.test(name)
const isThroughput = (name: string) => /throughput|(tokens|samples|images|steps).*(sec|\/s|_s)/i.test(name)

/** Names as they are offered: losses first, and then throughput; within, by name. */
export function ranked(names: string[]): string[] {
  const rank = (name: string) => (isLoss(name) ? 0 : isThroughput(name) ? 1 : 2)
  return [...names].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b, 'en'))
}

/** What is drawn unless somebody chooses, of names that are ranked: the first, and a throughput if one is told. */
export function first(names: string[]): string[] {
  return [...new Set([...names.slice(0, 1), ...names.filter(isThroughput).slice(0, 1)])]
}
