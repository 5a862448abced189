import { expect, it } from 'vitest'
import type { Attempt } from '../api/types'
import { etaMs, runTimeMs, stepRate } from './progress'

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

it('estimates the remaining time only with a total and a speed', () => {
  expect(etaMs({ step: 100, total_steps: 300 }, 2)).toBe(100_000)
  expect(etaMs({ step: 100, total_steps: null }, 2)).toBeNull()
  expect(etaMs({ step: 300, total_steps: 300 }, 2)).toBeNull()
  expect(etaMs({ step: 100, total_steps: 300 }, null)).toBeNull()
})

it('adds up the time with nodes of all attempts', () => {
  expect(runTimeMs([attempt(0, 1, 1_000), attempt(1, 2, 2_000)])).toBe(33_000)
})
