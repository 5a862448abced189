// Speed, run time and estimated remaining time of a job. Pure.

import type { Attempt, Job } from '../api/types'

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

/** Remaining steps at a speed; null where the job reports no total or the speed is unknown. */
export function etaMs({ step, total_steps }: Pick<Job, 'step' | 'total_steps'>, rate: number | null): number | null {
  if (rate === null || total_steps === null || step >= total_steps) return null
  return (1000 * (total_steps - step)) / rate
}
