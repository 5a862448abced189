// What is drawn of nodes and their prices, computed from what the service tells. Pure.

import type { Losses, Notices, PriceSeries, Survival } from '../api/types'
import { duration, many, measured } from '../format'
import type { Bar } from './bars'

const HOUR_MS = 3_600_000

/** How many colours a rate may have. */
export const LEVELS = 5

/** The highest rate that is known; 0 where none is. */
export const mostOf = (losses: Losses[]): number => Math.max(0, ...losses.map((one) => one.per_100_node_hours ?? 0))

/** Which of the colours a rate has; 0 where there are too few losses for one. */
export const levelOf = (rate: number | null, most: number): number =>
  rate === null || most <= 0 ? 0 : Math.max(1, Math.ceil((LEVELS * rate) / most))

export const hourWords = (hour: number): string => String(hour).padStart(2, '0')

export function fieldWords(losses: Losses): string {
  const stood = `${losses.zone} ${hourWords(losses.hour ?? 0)}:00 UTC: ${losses.taken} taken in ${measured(losses.node_hours)} node-hours`
  const { per_100_node_hours: rate, per_100_node_hours_low: low, per_100_node_hours_high: high } = losses
  if (rate == null || low == null || high == null) return `${stood}; too few for a rate`
  return `${stood}; ${measured(rate)} in 100, 90 % interval ${measured(low)} to ${measured(high)}; no nodes for ${duration(1000 * (losses.recovery.wait_s ?? 0))} after each`
}

/** The corners of the curve as a path, from a share of 1 on. */
export function pathOf(points: Survival[], x: (hours: number) => number, y: (share: number) => number): string {
  const steps = points.map((point) => `H${x(point.hours).toFixed(1)}V${y(point.share).toFixed(1)}`)
  return `M${x(0).toFixed(1)},${y(1).toFixed(1)}${steps.join('')}`
}

/** Corners of the curve of a rate that does not change, so many as to look smooth. */
const CORNERS = 60

/** What share would last longer than so many hours if nodes were taken at the same rate at every age, as a path. */
export function fadingPath(mean_hours: number, longest: number, x: (hours: number) => number, y: (share: number) => number): string {
  const corners = Array.from({ length: CORNERS + 1 }, (_, at) => (longest * at) / CORNERS)
  return `M${corners.map((hours) => `${x(hours).toFixed(1)},${y(Math.exp(-hours / mean_hours)).toFixed(1)}`).join('L')}`
}

/** The first time that no more than a half outlives; null where more than a half always does. */
export const medianOf = (points: Survival[]): number | null => points.find((point) => point.share <= 0.5)?.hours ?? null

/** How long half of all placements last, after "last". Lengths are kept in whole minutes. */
export const lasting = (median_hours: number): string =>
  median_hours === 0 ? 'less than a minute' : `longer than ${duration(median_hours * HOUR_MS)}`

/** A price as a path of steps, until the end. */
export function stepsOf(series: PriceSeries, x: (at: number) => number, y: (micros: number) => number, until: number): string {
  const [first, ...rest] = series.changes
  if (!first) return ''
  const steps = rest.map((change) => `H${x(Date.parse(change.at)).toFixed(1)}V${y(change.micros_per_hour).toFixed(1)}`)
  return `M${x(Date.parse(first.at)).toFixed(1)},${y(first.micros_per_hour).toFixed(1)}${steps.join('')}H${x(until).toFixed(1)}`
}

export function barsOf(told: Notices): Bar[] {
  const none: Bar = { name: 'none', whole: told.without, part: 0, title: `${many(told.without, 'loss', 'losses')} without a notice` }
  const spans = told.notices.map(({ over_s, until_s, taken, used }) => ({
    name: until_s === null ? `> ${over_s} s` : `≤ ${until_s} s`,
    whole: taken,
    part: used,
    title: `${many(taken, 'notice')} of more than ${over_s}${until_s === null ? '' : ` and at most ${until_s}`} s; in ${used} work was saved`,
  }))
  const { taken, used } = told.unsaid
  const unsaid: Bar[] = taken ? [{ name: 'not said', whole: taken, part: used, title: `${many(taken, 'notice')} that did not say how long; in ${used} work was saved` }] : []
  return [none, ...unsaid, ...spans]
}
