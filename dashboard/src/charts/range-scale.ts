// The scale of forecast ranges, and where limits lie on it. Pure.

export interface Range {
  name: string
  p10: number
  p50: number
  p90: number
}

export interface Limit {
  name: string
  value: number
  /** An actual value instead of a limit. */
  is_actual?: true
}

export interface Extent {
  low: number
  high: number
}

/** How far limits may stretch the scale, as a multiple of the span of the ranges. A higher value makes the ranges unreadably narrow. */
const STRETCH = 3

/** The extent of ranges and actual values, and of all limits that are near enough. */
export function extentOfRanges(ranges: Range[], limits: Limit[]): Extent {
  const values = [...ranges.flatMap(({ p10, p90 }) => [p10, p90]), ...limits.filter(({ is_actual }) => is_actual).map(({ value }) => value)]
  const [low, high] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)]
  const reach = STRETCH * Math.max(high - low, 1e-9)
  const near = limits.map(({ value }) => value).filter((value) => value >= low - reach && value <= high + reach)
  return { low: near.reduce((a, b) => Math.min(a, b), low), high: near.reduce((a, b) => Math.max(a, b), high) }
}

/** The side of the scale at which a limit lies outside; null inside. */
export const sideOf = (value: number, { low, high }: Extent): 'left' | 'right' | null => (value < low ? 'left' : value > high ? 'right' : null)
