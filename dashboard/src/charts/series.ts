// Metric values of all attempts as columns of a chart over steps. Pure.

import type { Attempt, Bucket } from '../api/types'
import { lossKind, type LossKind } from '../phases'
import type { Window } from './attempt-lanes'

export interface Series {
  attempt: number
  /** Whether the work of these steps was lost. */
  rolled_back: boolean
  values: (number | null)[]
}

export interface Columns {
  steps: number[]
  series: Series[]
  /** Points that are not finite, and therefore not drawn. */
  not_finite: number
}

/** The value of one bucket. */
interface Spot {
  bucket: Bucket
  value: number | null
}

/** One series per attempt, and one more for its rolled-back steps. */
export function columnsOf(buckets: Bucket[], window: Window | null): Columns {
  return arranged(buckets.map((bucket) => ({ bucket, value: bucket.mean })), window)
}

/** Steps per second between consecutive buckets of an attempt. */
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

/** An event of an attempt at a step. */
export interface StepMark {
  kind: LossKind | 'resume'
  attempt: number
  step: number
}

/** Losses at the last reported step of their attempt, and resumes at the first step of later attempts. */
export const stepMarksOf = (attempts: Attempt[]): StepMark[] =>
  attempts.flatMap(({ attempt, cause, first_step, last_step }) => [
    ...(attempt > 1 && first_step !== null ? [{ kind: 'resume' as const, attempt, step: first_step }] : []),
    ...(cause !== null && last_step !== null ? [{ kind: lossKind(cause), attempt, step: last_step }] : []),
  ])

/** Number of marks of each kind if every attempt had reported steps. */
export function marksDue(attempts: Attempt[]): Partial<Record<StepMark['kind'], number>> {
  const due: Partial<Record<StepMark['kind'], number>> = {}
  for (const { cause } of attempts) if (cause !== null) due[lossKind(cause)] = (due[lossKind(cause)] ?? 0) + 1
  return due
}

/** The marks between the first and the last step. */
export const marksIn = <One extends { step: number }>(marks: One[], steps: number[]): One[] =>
  marks.filter(({ step }) => step >= (steps[0] ?? Infinity) && step <= (steps.at(-1) ?? -Infinity))

/** The time window in which any attempt ran these steps; null if none did. */
export function momentsOf(buckets: Bucket[], [from, to]: [number, number]): Window | null {
  const made = buckets.filter(({ first_step, last_step }) => last_step >= from && first_step <= to)
  if (made.length === 0) return null
  return { from: Math.min(...made.map((one) => Date.parse(one.first_at))), to: Math.max(...made.map((one) => Date.parse(one.last_at))) }
}

const TOKENS = /tokens?.*(per_s|sec|\/s|_s$)/i

/** The metric that holds the token throughput; undefined where none is logged. */
export const tokenSeries = (names: string[]): string | undefined => names.find((name) => TOKENS.test(name))

/** The mean of the bucket with the newest step; null without one. */
export function newestValue(buckets: Bucket[]): number | null {
  const [newest] = [...buckets].sort((a, b) => b.attempt - a.attempt || b.last_step - a.last_step)
  return newest?.mean ?? null
}

export const PACE = 'steps per second'

const isLoss = (name: string) => /loss/i.test(name)
const isThroughput = (name: string) => /throughput|(tokens|samples|images|steps).*(sec|\/s|_s)/i.test(name)

/** Names in display order: losses first, then throughput, each by name. */
export function ranked(names: string[]): string[] {
  const rank = (name: string) => (isLoss(name) ? 0 : isThroughput(name) ? 1 : 2)
  return [...names].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b, 'en'))
}

/** The default selection from ranked names: the first one, and a throughput if logged. */
export function first(names: string[]): string[] {
  return [...new Set([...names.slice(0, 1), ...names.filter(isThroughput).slice(0, 1)])]
}
