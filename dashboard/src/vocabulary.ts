// The words, marks and colours of what jobs do: the same everywhere, and never colour alone.

import type { Phases } from './api/types'

export type Phase = 'waiting' | keyof Phases

interface Look {
  mark: string
  word: string
  means: string
}

/** In the order in which an attempt goes through them. */
export const PHASES: Record<Phase, Look> = {
  waiting: { mark: '◌', word: 'Waiting', means: 'no nodes, and nothing to pay' },
  setup: { mark: '◔', word: 'Setup', means: 'nodes stand, and the program is not up yet' },
  restore: { mark: '↺', word: 'Restore', means: 'from the program’s first word to its first step' },
  useful: { mark: '●', word: 'Training', means: 'steps whose result was kept' },
  stalled: { mark: '◫', word: 'Stalled', means: 'nodes stood without stepping forward' },
  lost: { mark: '▨', word: 'Lost', means: 'steps that were done again, or would have to be' },
  unmeasured: { mark: '?', word: 'Not measured', means: 'the program has reported nothing, so its progress is unknown' },
}

export const PHASE_NAMES = Object.keys(PHASES) as Phase[]
export const PAID_PHASES = PHASE_NAMES.filter((name): name is keyof Phases => name !== 'waiting')

export type Tone = 'idle' | 'busy' | 'good' | 'warn' | 'bad'

/** Every state that a job may have; an unknown one of a newer service is shown as it is told. */
export const STATES: Record<string, { mark: string; tone: Tone; over?: true }> = {
  queued: { mark: '◌', tone: 'idle' },
  provisioning: { mark: '◌', tone: 'idle' },
  starting: { mark: '◔', tone: 'busy' },
  training: { mark: '●', tone: 'good' },
  recovering: { mark: '↺', tone: 'warn' },
  pausing: { mark: '◫', tone: 'warn' },
  paused: { mark: '◫', tone: 'warn' },
  stopping: { mark: '◫', tone: 'idle' },
  succeeded: { mark: '✓', tone: 'good', over: true },
  failed: { mark: '✕', tone: 'bad', over: true },
  cancelled: { mark: '⊘', tone: 'idle', over: true },
}

export const LIVE = Object.keys(STATES).filter((state) => !STATES[state]?.over)
export const OVER = Object.keys(STATES).filter((state) => STATES[state]?.over)

const CAUSES: Record<string, string> = {
  preempted: 'preempted',
  node_failed: 'nodes gone without notice',
  launcher_restarted: 'launcher restarted',
  paused: 'paused',
  launcher_forgot: 'launcher forgot it',
  user_error: 'the program failed',
}

export const causeWords = (cause: string): string => CAUSES[cause] ?? cause.replaceAll('_', ' ')
