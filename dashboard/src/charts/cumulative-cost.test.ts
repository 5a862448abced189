import { expect, it } from 'vitest'
import type { Bill } from '../api/types'
import { cumulativeCostOf, sumAt, within } from './cumulative-cost'

const phases = (setup: number, useful: number, lost: number) => ({ setup, restore: 0, useful, stalled: 0, lost, unmeasured: 0 })
const BILL = {
  attempts: [
    { attempt: 1, ready_at: '1970-01-01T00:00:10Z', waiting_ms: 5_000, ms: phases(2_000, 6_000, 2_000), micros: phases(20, 60, 20), paid_micros: 100, on_demand_micros: 160 },
    { attempt: 2, ready_at: '1970-01-01T00:00:30Z', waiting_ms: 10_000, ms: phases(1_000, 4_000, 0), micros: phases(10, 40, 0), paid_micros: 50, on_demand_micros: 80 },
  ],
  adjustments: [{ attempt: 1, micros: -7 }],
} as unknown as Bill

it('ends with the sums of the bill', () => {
  const course = cumulativeCostOf(BILL)

  expect(course[0]).toEqual({ at: 5_000, paid_micros: 0, on_demand_micros: 0 })
  expect(course.at(-1)).toEqual({ at: 35_000, paid_micros: 143, on_demand_micros: 240 })
})

it('is monotonic in time and flat without nodes', () => {
  const course = cumulativeCostOf(BILL)

  expect(course.every((sum, place) => place === 0 || sum.at >= (course[place - 1]?.at ?? 0))).toBe(true)
  expect(sumAt(course, 25_000)?.paid_micros).toBe(93)
})

it('interpolates inside the job and is null outside', () => {
  const course = cumulativeCostOf(BILL)

  expect(sumAt(course, 15_000)).toEqual({ at: 15_000, paid_micros: 50, on_demand_micros: 80 })
  expect([sumAt(course, 1_000), sumAt(course, 99_000)]).toEqual([null, null])
  expect(within(course, { from: 15_000, to: 16_000 }).map((sum) => sum.at)).toEqual([15_000, 16_000])
})

it('divides the cost of a phase over the starts of the ranks', () => {
  const [first, second] = BILL.attempts
  const starts = [phases(1_000, 3_000, 1_000), phases(1_000, 3_000, 1_000)]

  const course = cumulativeCostOf({ ...BILL, attempts: [{ ...first, starts }, second] } as unknown as Bill)

  expect(sumAt(course, 14_000)).toEqual({ at: 14_000, paid_micros: 40, on_demand_micros: 80 })
  expect(course.at(-1)).toEqual({ at: 35_000, paid_micros: 143, on_demand_micros: 240 })
})
