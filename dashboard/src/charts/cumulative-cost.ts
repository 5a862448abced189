// The cumulative cost of a job, and the on-demand price of the same useful work. Pure.

import type { Attempt, Bill } from '../api/types'
import { spansOf, type Window } from './attempt-lanes'

/** Amounts from the submission to a point in time. */
export interface Sum {
  at: number
  paid_micros: number
  on_demand_micros: number
}

/** The sums at the end of each phase, in order; the last one equals the bill.
 *
 * Within an attempt, on-demand cost accrues during useful time; adjustments apply at its end. A phase that ranks repeat after
 * a restart has its cost in proportion to time. */
export function cumulativeCostOf(bill: Bill): Sum[] {
  const sums: Sum[] = []
  let [paid, on_demand] = [0, 0]
  for (const attempt of bill.attempts) {
    const [paid_before, on_demand_before] = [paid, on_demand]
    for (const span of spansOf(attempt)) {
      if (sums.length === 0) sums.push({ at: span.from, paid_micros: 0, on_demand_micros: 0 })
      if (span.phase !== 'waiting') {
        const part = (span.to - span.from) / attempt.ms[span.phase]
        paid += part * attempt.micros[span.phase]
        if (span.phase === 'useful') on_demand += part * attempt.on_demand_micros
      }
      sums.push({ at: span.to, paid_micros: paid, on_demand_micros: on_demand })
    }
    const last = sums.at(-1)
    if (!last) continue
    // Exact, and with the on-demand cost of an attempt without useful time.
    paid = paid_before + attempt.paid_micros + adjustedOf(bill, attempt)
    on_demand = on_demand_before + attempt.on_demand_micros
    sums.push({ at: last.at, paid_micros: paid, on_demand_micros: on_demand })
  }
  return sums
}

const adjustedOf = (bill: Bill, { attempt }: Attempt): number =>
  (bill.adjustments ?? []).reduce((sum, line) => sum + (line.attempt === attempt ? line.micros : 0), 0)

/** The sums inside a window, including those at its edges. */
export function within(sums: Sum[], { from, to }: Window): Sum[] {
  const inside = sums.filter(({ at }) => at >= from && at <= to)
  return [sumAt(sums, from), ...inside, sumAt(sums, to)].filter((sum) => sum !== null)
}

/** The interpolated sums at a point in time; null outside the job. */
export function sumAt(sums: Sum[], at: number): Sum | null {
  const next = sums.findIndex((sum) => sum.at >= at)
  const [before, after] = [sums[next - 1], sums[next]]
  if (!after) return null
  if (after.at === at) return sums.findLast((sum) => sum.at === at) ?? after
  if (!before) return null
  const part = (at - before.at) / (after.at - before.at)
  const between = (a: number, b: number) => a + part * (b - a)
  return {
    at,
    paid_micros: between(before.paid_micros, after.paid_micros),
    on_demand_micros: between(before.on_demand_micros, after.on_demand_micros),
  }
}
