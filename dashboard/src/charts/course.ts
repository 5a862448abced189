// What a job had cost by each moment, and what the same useful work would have cost on demand. Pure.

import type { Attempt, Bill } from '../api/types'
import { spansOf, type Window } from './lanes'

/** Amounts by a moment, from the submission on. */
export interface Sum {
  at: number
  paid_micros: number
  on_demand_micros: number
}

/** The sums at the ends of phases, in order; the last one is the bill's.
 *
 * Within an attempt, money on demand is drawn as run up by its useful time alone; the rules of a provider come in at its end. */
export function courseOf(bill: Bill): Sum[] {
  const sums: Sum[] = []
  let [paid, on_demand] = [0, 0]
  for (const attempt of bill.attempts) {
    const useful = attempt.ms.useful > 0
    for (const span of spansOf(attempt)) {
      if (sums.length === 0) sums.push({ at: span.from, paid_micros: 0, on_demand_micros: 0 })
      if (span.phase !== 'waiting') paid += attempt.micros[span.phase]
      if (span.phase === 'useful') on_demand += attempt.on_demand_micros
      sums.push({ at: span.to, paid_micros: paid, on_demand_micros: on_demand })
    }
    const last = sums.at(-1)
    if (!last) continue
    // A setup that has to be paid, of an attempt without useful time, is none; so this adds what no span has told.
    if (!useful) on_demand += attempt.on_demand_micros
    paid += adjustedOf(bill, attempt)
    sums.push({ at: last.at, paid_micros: paid, on_demand_micros: on_demand })
  }
  return sums
}

const adjustedOf = (bill: Bill, { attempt }: Attempt): number =>
  (bill.adjustments ?? []).reduce((sum, line) => sum + (line.attempt === attempt ? line.micros : 0), 0)

/** The part of a course inside a window, with the sums at its edges. */
export function within(course: Sum[], { from, to }: Window): Sum[] {
  const inside = course.filter(({ at }) => at >= from && at <= to)
  return [sumAt(course, from), ...inside, sumAt(course, to)].filter((sum) => sum !== null)
}

/** The sums at a moment between two that are known; null outside of them. */
export function sumAt(course: Sum[], at: number): Sum | null {
  const next = course.findIndex((sum) => sum.at >= at)
  const [before, after] = [course[next - 1], course[next]]
  if (!after) return null
  if (after.at === at) return course.findLast((sum) => sum.at === at) ?? after
  if (!before) return null
  const part = (at - before.at) / (after.at - before.at)
  const between = (a: number, b: number) => a + part * (b - a)
  return {
    at,
    paid_micros: between(before.paid_micros, after.paid_micros),
    on_demand_micros: between(before.on_demand_micros, after.on_demand_micros),
  }
}
