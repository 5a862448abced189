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

/** What a worker does under a termination notice: in a word, and in words. */
const NOTICES: Record<string, { word: string; means: string }> = {
  noticed: { word: '', means: 'the job saves no checkpoints' },
  saving: { word: 'saving', means: 'saving a checkpoint' },
  leaving: { word: 'leaving', means: 'leaving its nodes' },
}

export const noticeMeans = (phase: string): string => NOTICES[phase]?.means ?? phase

/** The state of a job in words, with the termination notice under which it is. */
export function stateWords({ state, notice }: { state: string; notice?: { phase: string } | null | undefined }): string {
  if (!notice) return state
  const word = NOTICES[notice.phase]?.word ?? notice.phase
  return `${state}, termination notice${word && `: ${word}`}`
}

export type LossKind = 'preemption' | 'loss' | 'failure' | 'pause'
export type MarkKind = 'checkpoint' | 'notice' | 'resume' | LossKind

/** Marks of charts, lists of events and announcements, by the same words. */
export const MARKS: Record<MarkKind, { one: string; more: string; means: string }> = {
  checkpoint: { one: 'checkpoint', more: 'checkpoints', means: 'the state of a step became durable' },
  notice: { one: 'termination notice', more: 'termination notices', means: 'the nodes are about to be taken' },
  resume: { one: 'resume', more: 'resumes', means: 'the first step of a later attempt' },
  preemption: { one: 'preemption', more: 'preemptions', means: 'nodes were taken, or were gone without a notice; drawn at the last step that the attempt reported' },
  loss: { one: 'capacity loss', more: 'capacity losses', means: 'the launcher gave the nodes up; drawn at the last step that the attempt reported' },
  failure: { one: 'program failure', more: 'program failures', means: 'the program failed; drawn at the last step that the attempt reported' },
  pause: { one: 'pause', more: 'pauses', means: 'the nodes were given back; drawn at the last step that the attempt reported' },
}

const LOSSES: Record<string, LossKind> = { preempted: 'preemption', node_failed: 'preemption', user_error: 'failure', paused: 'pause' }

/** The mark of a loss of nodes. The service counts the same causes as preemptions. */
export const lossKind = (cause: string): LossKind => LOSSES[cause] ?? 'loss'

/** The mark of an event; null for one without. */
export function markOf(kind: string, body: Record<string, unknown>): MarkKind | null {
  if (kind === 'CheckpointCommitted') return 'checkpoint'
  if (kind === 'PreemptionNoticed') return 'notice'
  if (kind === 'CapacityLost') return lossKind(String(body.cause))
  return kind === 'TrainingStarted' && Number(body.attempt) > 1 ? 'resume' : null
}

const CAUSES: Record<string, string> = {
  preempted: 'preempted',
  node_failed: 'nodes gone without notice',
  launcher_restarted: 'launcher restarted',
  paused: 'paused',
  launcher_forgot: 'launcher forgot it',
  user_error: 'the program failed',
}

export const causeWords = (cause: string): string => CAUSES[cause] ?? cause.replaceAll('_', ' ')
