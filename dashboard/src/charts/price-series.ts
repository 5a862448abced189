// Geometry and labels of the charts on preemptions and prices. Pure.

import type { Losses, Notices, PriceSeries, Survival } from '../api/types'
import { duration, many, measured } from '../format'
import type { Bar } from './bars'

const HOUR_MS = 3_600_000

/** Number of colours of the heatmap. */
export const LEVELS = 5

/** The highest known rate; 0 without one. */
export const mostOf = (losses: Losses[]): number => Math.max(0, ...losses.map((one) => one.per_100_node_hours ?? 0))

/** The colour of a rate; 0 for too few preemptions. */
export const levelOf = (rate: number | null, most: number): number =>
  rate === null || most <= 0 ? 0 : Math.max(1, Math.ceil((LEVELS * rate) / most))

export const hourWords = (hour: number): string => String(hour).padStart(2, '0')

export function fieldWords(losses: Losses): string {
  const counted = `${losses.zone} ${hourWords(losses.hour ?? 0)}:00 UTC: ${many(losses.taken, 'preemption')} in ${measured(losses.node_hours)} node-hours`
  const { per_100_node_hours: rate, per_100_node_hours_low: low, per_100_node_hours_high: high } = losses
  if (rate == null || low == null || high == null) return `${counted}; too few for a rate`
  return `${counted}; ${measured(rate)} per 100 node-hours, 90 % CI ${measured(low)} to ${measured(high)}; mean wait for nodes ${duration(1000 * (losses.recovery.wait_s ?? 0))}`
}

/** The survival curve as an SVG path, starting at 1. */
export function pathOf(points: Survival[], x: (hours: number) => number, y: (share: number) => number): string {
  const steps = points.map((point) => `H${x(point.hours).toFixed(1)}V${y(point.share).toFixed(1)}`)
  return `M${x(0).toFixed(1)},${y(1).toFixed(1)}${steps.join('')}`
}

/** Points of the exponential curve. A lower value shows corners; a higher value makes the path longer. */
const CORNERS = 60

/** The exponential survival curve of a constant rate, as an SVG path. */
export function exponentialPath(mean_hours: number, longest: number, x: (hours: number) => number, y: (share: number) => number): string {
  const corners = Array.from({ length: CORNERS + 1 }, (_, at) => (longest * at) / CORNERS)
  return `M${corners.map((hours) => `${x(hours).toFixed(1)},${y(Math.exp(-hours / mean_hours)).toFixed(1)}`).join('L')}`
}

/** The median lifetime in hours; null while more than half survive. */
export const medianOf = (points: Survival[]): number | null => points.find((point) => point.share <= 0.5)?.hours ?? null

/** The median lifetime as text. Lifetimes are recorded in whole minutes. */
export const lifetimeText = (median_hours: number): string =>
  median_hours === 0 ? 'less than a minute' : duration(median_hours * HOUR_MS)

/** A price as a stepped SVG path, until `until`. */
export function stepsOf(series: PriceSeries, x: (at: number) => number, y: (micros: number) => number, until: number): string {
  const [first, ...rest] = series.changes
  if (!first) return ''
  const steps = rest.map((change) => `H${x(Date.parse(change.at)).toFixed(1)}V${y(change.micros_per_hour).toFixed(1)}`)
  return `M${x(Date.parse(first.at)).toFixed(1)},${y(first.micros_per_hour).toFixed(1)}${steps.join('')}H${x(until).toFixed(1)}`
}

export function barsOf(notices: Notices): Bar[] {
  const none: Bar = { name: 'none', whole: notices.without, part: 0, title: `${many(notices.without, 'preemption')} without notice` }
  const spans = notices.notices.map(({ over_s, until_s, taken, used }) => ({
    name: until_s === null ? `> ${over_s} s` : `≤ ${until_s} s`,
    whole: taken,
    part: used,
    title: `${many(taken, 'notice')} of more than ${over_s}${until_s === null ? '' : ` and at most ${until_s}`} s; ${used} with a checkpoint`,
  }))
  const { taken, used } = notices.unsaid
  const unsaid: Bar[] = taken ? [{ name: 'unknown', whole: taken, part: used, title: `${many(taken, 'notice')} of unknown length; ${used} with a checkpoint` }] : []
  return [none, ...unsaid, ...spans]
}
