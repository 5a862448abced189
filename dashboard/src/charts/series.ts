// Points of all attempts as columns for a chart over steps. Pure.

import type { Attempt, Point } from '../api/types'
import type { Window } from './lanes'

export interface Series {
  attempt: number
  /** Whether these steps were done again by a later attempt. */
  rolled_back: boolean
  values: (number | null)[]
}

export interface Columns {
  steps: number[]
  series: Series[]
}

/** The value of one name at every step, a series for each attempt, and one more for what it did in vain. */
export function columnsOf(points: Point[], attempts: Attempt[], name: string, window: Window | null): Columns {
  const within = points.filter((point) => {
    const at = Date.parse(point.at)
    return point.values[name] !== undefined && (!window || (at >= window.from && at <= window.to))
  })
  const steps = [...new Set(within.map((point) => point.step))].sort((a, b) => a - b)
  const place = new Map(steps.map((step, at) => [step, at]))
  const found = new Map<string, Series>()
  for (const point of within) {
    const rolled_back = point.step > keptUntil(attempts, point.attempt)
    const key = `${point.attempt}/${rolled_back}`
    const series = found.get(key) ?? { attempt: point.attempt, rolled_back, values: steps.map(() => null) }
    series.values[place.get(point.step) ?? 0] = point.values[name] ?? null
    found.set(key, series)
  }
  const order = (a: Series, b: Series) => a.attempt - b.attempt || Number(a.rolled_back) - Number(b.rolled_back)
  return { steps, series: [...found.values()].sort(order) }
}

/** The last step of an attempt from which, or from before which, no later attempt had to begin again. */
export function keptUntil(attempts: Attempt[], attempt: number): number {
  const later = attempts.filter((one) => one.attempt > attempt && one.first_step !== null)
  return later.reduce((least, one) => Math.min(least, one.first_step ?? least), Infinity)
}

/** Steps at which nodes were lost. */
export const lossesOf = (attempts: Attempt[]): { attempt: number; step: number }[] =>
  attempts.flatMap((one) =>
    one.cause !== null && one.last_step !== null ? [{ attempt: one.attempt, step: one.last_step }] : [],
  )

/** Points with how fast steps came since the point before, in steps a second. */
export function withPace(points: Point[]): Point[] {
  const before = new Map<number, Point>()
  return points.map((point) => {
    const last = before.get(point.attempt)
    before.set(point.attempt, point)
    const seconds = last ? (Date.parse(point.at) - Date.parse(last.at)) / 1000 : 0
    if (!last || seconds <= 0 || point.step <= last.step) return point
    return { ...point, values: { ...point.values, [PACE]: (point.step - last.step) / seconds } }
  })
}

export const PACE = 'steps per second'

/** What was measured: the loss first, then by name. */
export function namesOf(points: Point[]): string[] {
  const names = [...new Set(points.flatMap((point) => Object.keys(point.values)))].sort()
  const is_loss = (name: string) => /loss/i.test(name)
  return [...names.filter(is_loss), ...names.filter((name) => !is_loss(name))]
}
