// Scales of the sliders for deadline and budget, and the texts that they write into the job file. Pure.

import type { PlanAlternative } from '../api/types'

export interface Scale {
  /** Distance of two positions, also the lowest. */
  step: number
  /** The highest value. One step above is the position for no limit. */
  most: number
}

/** Positions of a slider. A lower value makes it coarse; a higher value makes the arrow keys slow. */
const POSITIONS = 200
const STEPS_S = [1, 5, 15, 60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400]
/** The longest deadline as a multiple of the work, with which waiting for spot nodes is all that remains to do. */
const LONGEST = 4
/** The highest budget as a multiple of the dearest end. */
const DEAREST = 1.5

const UNITS_S: Record<string, number> = { s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 }

/** Seconds of a deadline, a duration or a time, from now; null if it is neither. */
export function secondsOf(text: string, now: number): number | null {
  const words = text.trim().toLowerCase()
  if (/^(\d+\s*[smhdw]\s*)+$/.test(words)) return [...words.matchAll(/(\d+)\s*([smhdw])/g)].reduce((sum, [, n, unit]) => sum + Number(n) * (UNITS_S[unit ?? ''] ?? 0), 0)
  const at = /^\d{4}-\d\d-\d\d/.test(words) ? Date.parse(text) : NaN
  return Number.isNaN(at) ? null : Math.max(0, (at - now) / 1000)
}

/** A duration in the largest unit up to hours that has no fraction. */
export function spanText(seconds: number): string {
  const unit = ['h', 'm'].find((one) => seconds % (UNITS_S[one] ?? 1) === 0) ?? 's'
  return `${seconds / (UNITS_S[unit] ?? 1)}${unit}`
}

/** Deadlines up to a multiple of the work, or up to the present one. */
export function deadlineScale(work_s: number, present_s: number): Scale {
  const wanted = Math.max(LONGEST * work_s, present_s, 1)
  const step = STEPS_S.find((one) => wanted / one <= POSITIONS) ?? 7 * 86_400
  return { step, most: step * Math.ceil(wanted / step) }
}

/** Budgets in USD up to a multiple of what the job would cost, or up to the present one. */
export function budgetScale(alternatives: PlanAlternative[], present_usd: number): Scale {
  const others = alternatives.filter(({ name }) => name !== 'ours')
  const dearest = Math.max(0, ...(others.length > 0 ? others : alternatives).map(({ cost_micros }) => cost_micros.p90)) / 1e6
  const wanted = Math.max(DEAREST * dearest, present_usd, 0.01)
  const unit = 10 ** Math.floor(Math.log10(wanted / POSITIONS))
  const step = [1, 2, 5, 10].map((n) => Number((n * unit).toPrecision(6))).find((one) => wanted / one <= POSITIONS) ?? wanted
  return { step, most: Number((step * Math.ceil(wanted / step - 1e-9)).toPrecision(12)) }
}

/** The position of a value; that for no limit is one step above the highest value. */
export const positionOf = (value: number | null, { step, most }: Scale): number => (value === null ? most + step : Math.max(step, Math.min(most, value)))

/** The value of a position; null for no limit. */
export const valueAt = (position: number, { step, most }: Scale): number | null => (position > most + step / 2 ? null : Number((step * Math.round(position / step)).toPrecision(12)))
