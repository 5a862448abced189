import { expect, it } from 'vitest'
import type { PlanAlternative } from '../api/types'
import { budgetScale, deadlineScale, positionOf, secondsOf, spanText, valueAt } from './plan-sliders'

const costs = (p90: number, name: PlanAlternative['name']) => ({ name, cost_micros: { p10: 0, p50: 0, p90: p90 * 1e6 } }) as PlanAlternative

it('reads durations and times of a job file', () => {
  expect(secondsOf('48h', 0)).toBe(172_800)
  expect(secondsOf(' 1h 30m ', 0)).toBe(5_400)
  expect(secondsOf('2026-03-02T00:00:00Z', Date.parse('2026-03-01T00:00:00Z'))).toBe(86_400)
  expect(secondsOf('2026-03-01T00:00:00Z', Date.parse('2026-03-02T00:00:00Z'))).toBe(0)
  for (const text of ['', 'soon', '48']) expect(secondsOf(text, 0)).toBeNull()
})

it('writes durations that the job file accepts', () => {
  expect([172_800, 5_400, 90].map(spanText)).toEqual(['48h', '90m', '90s'])
  for (const seconds of [60, 900, 86_400]) expect(secondsOf(spanText(seconds), 0)).toBe(seconds)
})

it('reaches four times the work, and the present deadline', () => {
  expect(deadlineScale(31 * 3600, 0)).toEqual({ step: 3600, most: 124 * 3600 })
  expect(deadlineScale(60, 0)).toEqual({ step: 5, most: 240 })
  expect(deadlineScale(3600, 30 * 3600).most).toBe(30 * 3600)
})

it('reaches beyond the cost of the alternatives in round steps', () => {
  expect(budgetScale([costs(900, 'ours'), costs(400, 'on_demand'), costs(300, 'spot')], 0)).toEqual({ step: 5, most: 600 })
  expect(budgetScale([costs(400, 'ours')], 0).most).toBe(600)
  expect(budgetScale([costs(1, 'on_demand')], 250).most).toBe(250)
  expect(budgetScale([], 0).most).toBeGreaterThan(0)
})

it('has a position for no limit above the highest value', () => {
  const scale = { step: 5, most: 600 }
  expect(positionOf(null, scale)).toBe(605)
  expect(valueAt(605, scale)).toBeNull()
  expect(valueAt(600, scale)).toBe(600)
  expect(positionOf(1, scale)).toBe(5)
  expect(valueAt(0.3, { step: 0.1, most: 2 })).toBe(0.3)
})
