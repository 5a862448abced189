// Saved work of a planned job over time, beside its safety net and the forecast of its end. Pure.

import type { JobPlan, PlanForecast } from '../api/types'
import type { Window } from './attempt-lanes'

export interface Point {
  at: number
  /** Training time. */
  s: number
}

/** From the submission until all is over: now, the deadline, and the latest expected end. */
export function planWindow(plan: JobPlan, submitted: number, now: number): Window {
  const ends = [plan.deadline_at, plan.forecast?.end_at.p90, plan.first_forecast?.end_at.p90].flatMap((at) => (at ? [Date.parse(at)] : []))
  return { from: submitted, to: Math.max(now, submitted + 60_000, ...ends) }
}

/** Saved work as corners of steps: it changes only with a checkpoint. */
export function savedSteps(plan: JobPlan, submitted: number, end: number): Point[] {
  const corners: Point[] = [{ at: submitted, s: 0 }]
  for (const { at, saved_s } of plan.progress) corners.push({ at: Date.parse(at), s: corners.at(-1)?.s ?? 0 }, { at: Date.parse(at), s: saved_s })
  return [...corners, { at: end, s: corners.at(-1)?.s ?? 0 }]
}

/** Saved work at a point in time. */
export const savedAt = (plan: JobPlan, at: number): number => plan.progress.findLast((one) => Date.parse(one.at) <= at)?.saved_s ?? 0

/** The part of the safety net between no work and all work, inside the window. On-demand nodes make a second of work in a second. */
export function netLine(plan: JobPlan, window: Window): Point[] {
  const last = plan.net.at(-1)
  if (!last) return []
  const at = (moment: number): Point => ({ at: moment, s: last.needed_s - (Date.parse(last.at) - moment) / 1000 })
  const momentOf = (s: number): number => Date.parse(last.at) - 1000 * (last.needed_s - s)
  const [begin, end] = [Math.max(window.from, momentOf(0)), Math.min(window.to, momentOf(Math.min(plan.work_s, last.needed_s)))]
  return begin < end ? [at(begin), at(end)] : []
}

/** Corners of a fan from where the job stands to the early and the late end of all work. */
export function fanOf(forecast: PlanForecast, from: Point, work_s: number): { corners: Point[]; middle: Point } {
  const end = (at: string): Point => ({ at: Math.max(from.at, Date.parse(at)), s: work_s })
  return { corners: [from, end(forecast.end_at.p10), end(forecast.end_at.p90)], middle: end(forecast.end_at.p50) }
}
