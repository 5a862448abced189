import { expect, it } from 'vitest'
import type { JobPlan, PlanForecast } from '../api/types'
import { fanOf, netLine, planWindow, savedAt, savedSteps } from './plan-progress'

const HOUR_MS = 3_600_000
const DAWN = Date.parse('2026-03-01T00:00:00Z')
const at = (hours: number) => new Date(DAWN + hours * HOUR_MS).toISOString()
const forecast = { end_at: { p10: at(9), p50: at(10), p90: at(14) } } as PlanForecast
const plan = {
  work_s: 8 * 3600, deadline_at: at(12), forecast, first_forecast: null,
  progress: [{ at: at(2), saved_s: 3600 }, { at: at(4), saved_s: 7200 }],
  net: [{ at: at(0), needed_s: 0 }, { at: at(12), needed_s: 9 * 3600 }],
} as unknown as JobPlan

it('shows the time from the submission to the latest of now, deadline and end', () => {
  expect(planWindow(plan, DAWN, DAWN + HOUR_MS)).toEqual({ from: DAWN, to: DAWN + 14 * HOUR_MS })
  expect(planWindow({ ...plan, forecast: null }, DAWN, DAWN + HOUR_MS).to).toBe(DAWN + 12 * HOUR_MS)
  expect(planWindow({ ...plan, forecast: null, deadline_at: null }, DAWN, DAWN + 20 * HOUR_MS).to).toBe(DAWN + 20 * HOUR_MS)
})

it('draws saved work as steps at the checkpoints', () => {
  const hours = savedSteps(plan, DAWN, DAWN + 5 * HOUR_MS).map((one) => [(one.at - DAWN) / HOUR_MS, one.s / 3600])
  expect(hours).toEqual([[0, 0], [2, 0], [2, 1], [4, 1], [4, 2], [5, 2]])
  expect(savedSteps({ ...plan, progress: [] }, DAWN, DAWN + HOUR_MS).map(({ s }) => s)).toEqual([0, 0])
  expect([1, 2, 3, 9].map((hour) => savedAt(plan, DAWN + hour * HOUR_MS))).toEqual([0, 3600, 3600, 7200])
})

it('draws the net from no work to all work', () => {
  const hours = netLine(plan, planWindow(plan, DAWN, DAWN)).map((one) => [(one.at - DAWN) / HOUR_MS, one.s / 3600])
  expect(hours).toEqual([[3, 0], [11, 8]])
  expect(netLine({ ...plan, net: [] }, planWindow(plan, DAWN, DAWN))).toEqual([])
})

it('opens the fan from the present to the ends of all work', () => {
  const { corners, middle } = fanOf(forecast, { at: DAWN + 9.5 * HOUR_MS, s: 60 }, 120)
  expect(corners.map((one) => [(one.at - DAWN) / HOUR_MS, one.s])).toEqual([[9.5, 60], [9.5, 120], [14, 120]])
  expect(middle).toEqual({ at: DAWN + 10 * HOUR_MS, s: 120 })
})
