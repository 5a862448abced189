import { expect, it } from 'vitest'
import type { Attempt } from '../api/types'
import { endsIn, runTimeMs, stepParts, stepRate } from './progress'

const attempt = (first_step: number | null, last_step: number | null, useful: number) =>
  ({ first_step, last_step, ms: { setup: 5_000, restore: 0, useful, stalled: 10_000, lost: 0, unmeasured: 0 } }) as unknown as Attempt

it('divides the steps of an attempt by its training time, stalls included', () => {
  expect(stepRate(attempt(100, 300, 90_000))).toBe(2)
})

it('gives no speed without steps or after a few seconds', () => {
  expect(stepRate(undefined)).toBeNull()
  expect(stepRate(attempt(null, null, 90_000))).toBeNull()
  expect(stepRate(attempt(100, 100, 90_000))).toBeNull()
  expect(stepRate({ ...attempt(1, 2, 0), ms: { ...attempt(1, 2, 0).ms, stalled: 0 } })).toBeNull()
})

it('has a band of remaining time only with an estimate', () => {
  const at = (ms: number) => new Date(ms).toISOString()
  expect(endsIn({ p10: at(1_000), p50: at(5_000), p90: at(9_000), is_planned: false }, 2_000)).toEqual({ low: 0, middle: 3_000, high: 7_000 })
  expect(endsIn({ reason: 'it is paused', is_planned: false }, 2_000)).toBeNull()
  expect(endsIn(undefined, 2_000)).toBeNull()
})

it('lists the parts of a step that were measured', () => {
  expect(stepParts({ steps_per_s: 2, data_s: 0.1, rest_s: 0.4, saving_s: 0, compute_s: null })).toEqual([['data', 0.1], ['rest', 0.4], ['saving', 0]])
  expect(stepParts({ steps_per_s: 2 })).toEqual([])
})

it('adds up the time with nodes of all attempts', () => {
  expect(runTimeMs([attempt(0, 1, 1_000), attempt(1, 2, 2_000)])).toBe(33_000)
})
