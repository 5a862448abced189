// Axes of parallel coordinates: one for each parameter of a sweep, and one for its metric. Pure.

import type { SweepCurve, Trial } from '../api/types'
import { measured } from '../format'

/** A job of a sweep with its values of the compared metric. */
export interface Compared {
  trial: Trial
  name: string
  best: number | null
  last: number | null
}

export interface Axis {
  name: string
  ticks: { text: string; at: number }[]
  /** Position of a job, from 0 at the bottom to 1 at the top; null without a value. */
  at: (job: Compared) => number | null
}

/** Ticks of a parameter. With more, their texts overlap. */
const MOST_TICKS = 9

const numberOf = (text: string): number | null => (text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : null)

/** Parameters with several values; the others are the same for all jobs. */
export const varied = (params: Record<string, string[]>): string[] => Object.keys(params).filter((name) => (params[name]?.length ?? 0) > 1)

/** The value of a parameter for sorting: a number if it is one. */
export const sortable = (text: string | undefined): string | number | null => (text === undefined ? null : (numberOf(text) ?? text))

/** Values in order: numbers by size, others as given. */
export function ordered(values: string[]): string[] {
  const numbers = values.map(numberOf)
  return numbers.every((number) => number !== null) ? [...values].sort((a, b) => Number(a) - Number(b)) : values
}

/** The axis of a parameter: its values at equal distances, since a grid often has powers of ten. */
export function parameterAxis(name: string, values: string[]): Axis {
  const places = new Map(ordered(values).map((value, at, all) => [value, all.length > 1 ? at / (all.length - 1) : 0.5]))
  const each = Math.ceil(places.size / MOST_TICKS)
  return {
    name,
    ticks: [...places].filter((_, at) => at % each === 0).map(([text, at]) => ({ text, at })),
    at: ({ trial }) => places.get(trial.params[name] ?? '') ?? null,
  }
}

/** The axis of the metric, with better values at the top. */
export function metricAxis(name: string, jobs: Compared[], is_higher_better: boolean, is_log: boolean): Axis {
  const scaled = (value: number) => (is_log ? Math.log(value) : value)
  const drawn = jobs.flatMap(({ best }) => (best !== null && (!is_log || best > 0) ? [best] : []))
  const [low, high] = [drawn.reduce((a, b) => Math.min(a, b), Infinity), drawn.reduce((a, b) => Math.max(a, b), -Infinity)]
  const span = scaled(high) - scaled(low)
  const up = (value: number) => (span > 0 ? (scaled(value) - scaled(low)) / span : 0.5)
  const at = (value: number) => (is_higher_better ? up(value) : 1 - up(value))
  const values = drawn.length === 0 ? [] : span > 0 ? [0, 1, 2, 3].map((part) => scaled(low) + (span * part) / 3).map((value) => (is_log ? Math.exp(value) : value)) : [low]
  return {
    name,
    ticks: values.map((value) => ({ text: measured(value), at: at(value) })),
    at: ({ best }) => (best === null || (is_log && best <= 0) ? null : at(best)),
  }
}

const HIGHER = /acc|score|f1|bleu|reward|return|auc|recall|precision|iou|mfu|_per_s|throughput/i

/** Whether higher values of a metric are better, by its name, where the sweep does not say it. */
export const guessHigher = (name: string): boolean => HIGHER.test(name)

/** The jobs from the best to the worst; those without a value last, in their order. */
export function rankedJobs(jobs: Compared[], is_higher_better: boolean): Compared[] {
  const sign = is_higher_better ? -1 : 1
  return [...jobs].sort((a, b) => Number(a.best === null) - Number(b.best === null) || sign * ((a.best ?? 0) - (b.best ?? 0)) || a.trial.number - b.trial.number)
}

/** The jobs of a sweep with the values of a metric. */
export function compare(trials: Trial[], name: string, curves: SweepCurve[], is_higher_better: boolean): Compared[] {
  const known = new Map(curves.map((curve) => [curve.job_id, curve]))
  return trials.map((trial) => {
    const curve = known.get(trial.job_id)
    return { trial, name: `${name}-${trial.number}`, best: curve ? (is_higher_better ? curve.high : curve.low) : null, last: curve?.last ?? null }
  })
}

/** The line of a job by its rank among those with a value: colour from the worst to the best, and a dash for each third. */
export function rankStyle(rank: number, count: number): { colour: string; dash: string } {
  const share = count > 1 ? rank / (count - 1) : 0
  return {
    colour: `color-mix(in oklch, var(--ramp-new) ${Math.round(100 * (1 - share))}%, var(--ramp-old))`,
    dash: share <= 1 / 3 ? 'none' : share <= 2 / 3 ? '7 3' : '2 3',
  }
}
