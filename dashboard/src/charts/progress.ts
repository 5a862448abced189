// Speed, run time, parts of a step and remaining time of a job. Pure.

import type { Attempt, Job, Rates } from '../api/types'

/** Time with nodes, all attempts. */
export const runTimeMs = (attempts: Attempt[]): number =>
  attempts.reduce((sum, { ms }) => sum + Object.values(ms).reduce((all, phase) => all + phase, 0), 0)

/** Shortest training time that gives a speed. A lower value shows the noise of the first steps; a higher value shows nothing for longer. */
const SHORTEST_MS = 10_000

/** Steps per second of an attempt, from its first to its last step; null until both are known. */
export function stepRate(attempt: Attempt | undefined): number | null {
  if (!attempt || attempt.first_step === null || attempt.last_step === null) return null
  const steps = attempt.last_step - attempt.first_step
  const ms = attempt.ms.useful + attempt.ms.lost + attempt.ms.stalled
  return steps > 0 && ms >= SHORTEST_MS ? (1000 * steps) / ms : null
}

/** The measured parts of a step, with their seconds, in the order of the step. */
export function stepParts(rates: Rates): [string, number][] {
  const named: [string, number | null | undefined][] = [
    ['data', rates.data_s],
    ['compute', rates.compute_s],
    ['communication', rates.communication_s],
    ['rest', rates.rest_s],
    ['saving', rates.saving_s],
  ]
  return named.filter((part): part is [string, number] => part[1] !== null && part[1] !== undefined)
}

/** Milliseconds until the expected end and both ends of its band, none below 0; null without an estimate. */
export function endsIn(eta: Job['eta'], now: number): { low: number; middle: number; high: number } | null {
  if (!eta?.p10 || !eta.p50 || !eta.p90) return null
  const left = (at: string) => Math.max(0, Date.parse(at) - now)
  return { low: left(eta.p10), middle: left(eta.p50), high: left(eta.p90) }
}
