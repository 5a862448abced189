import { expect, test } from 'vitest'
import type { Losses, Notices, PriceSeries, Survival } from '../api/types'
import { barsOf, exponentialPath, fieldWords, lifetimeText, levelOf, medianOf, mostOf, pathOf, stepsOf } from './price-series'
import { axisTicks, roundTicks } from './scale'

test('places few round ticks', () => {
  expect(roundTicks(11.39)).toEqual([0, 5, 10])
  expect(roundTicks(9.8)).toEqual([0, 2.5, 5, 7.5])
  expect(roundTicks(40)).toEqual([0, 10, 20, 30, 40])
  expect(roundTicks(0.3)).toEqual([0, 0.1, 0.2, 0.3])
  expect(roundTicks(0)).toEqual([0])
  expect(axisTicks(11.39)).toEqual([0, 5, 10, 15])
  expect(axisTicks(40)).toEqual([0, 10, 20, 30, 40])
})

const losses = (rate: number | null): Losses => ({
  zone: 'a', hour: 3, instance_type: null, cause: null, taken: 7, drills: 0, causes: {}, node_hours: 12.5,
  per_100_node_hours: rate, per_100_node_hours_low: rate && rate / 2, per_100_node_hours_high: rate && rate * 2,
  node_hours_between: null, node_hours_between_low: null, node_hours_between_high: null, noticed: 0, notice_used: 0, notice_s: null,
  recovery: { detect_s: null, wait_s: 90, setup_s: null, restore_s: null, redo_s: null },
  lost_steps: 0, lost_ms: 0, lost_micros: 0, simulated: false, is_price_estimate: false,
})

test('colours a cell by its rate and none with too few preemptions', () => {
  expect(mostOf([losses(3), losses(null), losses(50)])).toBe(50)
  expect([0.1, 10, 10.1, 50].map((rate) => levelOf(rate, 50))).toEqual([1, 1, 2, 5])
  expect(levelOf(null, 50)).toBe(0)
  expect(fieldWords(losses(null))).toBe('a 03:00 UTC: 7 preemptions in 12.5 node-hours; too few for a rate')
  expect(fieldWords(losses(56))).toContain('56 per 100 node-hours, 90 % CI 28 to 112; mean wait for nodes 90 s')
})

test('draws survival in steps with the median at one half', () => {
  const points: Survival[] = [{ hours: 1, share: 0.75, at_risk: 4, taken: 1 }, { hours: 3, share: 0.5, at_risk: 3, taken: 1 }]
  expect(pathOf(points, (hours) => 10 * hours, (share) => 100 * (1 - share))).toBe('M0.0,0.0H10.0V25.0H30.0V50.0')
  expect(medianOf(points)).toBe(3)
  expect(medianOf(points.slice(0, 1))).toBeNull()
})

test('draws an exponential that reaches 1/e at its mean', () => {
  const path = exponentialPath(2, 4, (hours) => 10 * hours, (share) => 100 * (1 - share))
  const corners = path.slice(1).split('L')
  expect(corners[0]).toBe('0.0,0.0')
  expect(corners[30]).toBe(`20.0,${(100 * (1 - 1 / Math.E)).toFixed(1)}`)
  expect(corners.at(-1)).toBe(`40.0,${(100 * (1 - Math.exp(-2))).toFixed(1)}`)
})

test('orders notices by length and shows unknown ones only if present', () => {
  const notices: Notices = {
    since: null, until: null, without: 4, unsaid: { over_s: null, until_s: null, taken: 0, used: 0 },
    notices: [{ over_s: 0, until_s: 10, taken: 2, used: 1 }, { over_s: 120, until_s: null, taken: 3, used: 3 }],
  }
  expect(barsOf(notices).map((bar) => [bar.name, bar.whole, bar.part])).toEqual([['none', 4, 0], ['≤ 10 s', 2, 1], ['> 120 s', 3, 3]])
  expect(barsOf({ ...notices, unsaid: { over_s: null, until_s: null, taken: 1, used: 0 } })[1]?.name).toBe('unknown')
})

test('writes a median lifetime of zero minutes as less than a minute', () => {
  expect(lifetimeText(0)).toBe('less than a minute')
  expect(lifetimeText(0.5)).toBe('30 min')
})

test('holds each price until the next one or the end', () => {
  const changes = [{ at: '2026-01-01T00:00:00Z', micros_per_hour: 4 }, { at: '2026-01-01T06:00:00Z', micros_per_hour: 8 }]
  const series = { changes } as unknown as PriceSeries
  const x = (at: number) => (at - Date.parse('2026-01-01T00:00:00Z')) / 3_600_000
  expect(stepsOf(series, x, (micros) => 10 - micros, Date.parse('2026-01-01T12:00:00Z'))).toBe('M0.0,6.0H6.0V2.0H12.0')
})
