// Names and symbols of phases, states, marks and causes. Nothing is distinguished by colour alone.

import type { Phases } from './api/types'

export type Phase = 'waiting' | keyof Phases

interface Look {
  mark: string
  word: string
  means: string
}

/** In the order in which an attempt goes through them. */
export const PHASES: Record<Phase, Look> = {
  waiting: { mark: '◌', word: 'Waiting', means: 'no nodes and no cost' },
  setup: { mark: '◔', word: 'Setup', means: 'nodes are up, the program has not started' },
  restore: { mark: '↺', word: 'Restore', means: 'from the start of the program to its first step' },
  useful: { mark: '●', word: 'Training', means: 'steps whose result was kept' },
  stalled: { mark: '◫', word: 'Stalled', means: 'nodes are up without progress' },
  lost: { mark: '▨', word: 'Lost', means: 'steps that were, or would be, recomputed' },
  unmeasured: { mark: '?', word: 'Not measured', means: 'the program reports no progress' },
}

export const PHASE_NAMES = Object.keys(PHASES) as Phase[]
export const PAID_PHASES = PHASE_NAMES.filter((name): name is keyof Phases => name !== 'waiting')

export type Tone = 'idle' | 'busy' | 'good' | 'warn' | 'bad'

/** Every state of a job. An unknown state of a newer service is shown by its name. */
export const STATES: Record<string, { mark: string; tone: Tone; over?: true }> = {
  queued: { mark: '◌', tone: 'idle' },
  provisioning: { mark: '◌', tone: 'idle' },
  starting: { mark: '◔', tone: 'busy' },
  training: { mark: '●', tone: 'good' },
  degraded: { mark: '◑', tone: 'warn' },
  recovering: { mark: '↺', tone: 'warn' },
  moving: { mark: '⇄', tone: 'busy' },
  pausing: { mark: '◫', tone: 'warn' },
  paused: { mark: '◫', tone: 'warn' },
  stopping: { mark: '◫', tone: 'idle' },
  succeeded: { mark: '✓', tone: 'good', over: true },
  failed: { mark: '✕', tone: 'bad', over: true },
  cancelled: { mark: '⊘', tone: 'idle', over: true },
}

/** Whether a job makes steps, on all its nodes or on fewer. */
export const isTraining = (state: string): boolean => state === 'training' || state === 'degraded'

export const LIVE_STATES = Object.keys(STATES).filter((state) => !STATES[state]?.over)
export const ENDED_STATES = Object.keys(STATES).filter((state) => STATES[state]?.over)

/** Phases of a worker under a termination notice. */
const NOTICES: Record<string, { word: string; means: string }> = {
  noticed: { word: '', means: 'the job saves no checkpoints' },
  saving: { word: 'saving', means: 'saving a checkpoint' },
  leaving: { word: 'leaving', means: 'leaving its nodes' },
}

export const noticeMeans = (phase: string): string => NOTICES[phase]?.means ?? phase

/** The state of a job, with its termination notice. */
export function stateWords({ state, notice }: { state: string; notice?: { phase: string } | null | undefined }): string {
  if (!notice) return state
  const word = NOTICES[notice.phase]?.word ?? notice.phase
  return `${state}, termination notice${word && `: ${word}`}`
}

export type Capacity = 'spot' | 'on-demand' | 'waiting'

/** What a plan chooses, with the fill of the charts. */
export const CAPACITIES: Record<Capacity, { word: string; means: string }> = {
  spot: { word: 'Spot', means: 'spot nodes, or a request for them' },
  'on-demand': { word: 'On demand', means: 'on-demand nodes, or a request for them' },
  waiting: { word: 'Waiting', means: 'no nodes and no cost, while there is time to wait for spot nodes' },
}

export const capacityOf = (capacity: 'spot' | 'on_demand' | null): Capacity => (capacity === null ? 'waiting' : capacity === 'spot' ? 'spot' : 'on-demand')

export type LossKind = 'preemption' | 'loss' | 'failure' | 'pause' | 'move'
export type MarkKind = 'checkpoint' | 'notice' | 'resume' | LossKind

/** Where the mark of a loss is drawn, as the attempt makes no step afterwards. */
const DRAWN = 'drawn at the last reported step of the attempt'

/** Marks of charts, event lists and announcements. */
export const MARKS: Record<MarkKind, { one: string; more: string; means: string }> = {
  checkpoint: { one: 'checkpoint', more: 'checkpoints', means: 'a checkpoint was committed' },
  notice: { one: 'termination notice', more: 'termination notices', means: 'the nodes are about to be terminated' },
  resume: { one: 'resume', more: 'resumes', means: 'the first step of a later attempt' },
  preemption: { one: 'preemption', more: 'preemptions', means: `nodes preempted, or lost without notice; ${DRAWN}` },
  loss: { one: 'capacity loss', more: 'capacity losses', means: `the launcher lost the nodes; ${DRAWN}` },
  failure: { one: 'program failure', more: 'program failures', means: `the program failed; ${DRAWN}` },
  pause: { one: 'pause', more: 'pauses', means: `the nodes were released; ${DRAWN}` },
  move: { one: 'move', more: 'moves', means: `the nodes were exchanged for others, as planned; ${DRAWN}` },
}

const LOSSES: Record<string, LossKind> = { preempted: 'preemption', node_failed: 'preemption', user_error: 'failure', paused: 'pause', moved: 'move' }

/** The mark of a capacity loss. The service counts the same causes as preemptions. */
export const lossKind = (cause: string): LossKind => LOSSES[cause] ?? 'loss'

/** The mark of an event; null for one without. */
export function markOf(kind: string, body: Record<string, unknown>): MarkKind | null {
  if (kind === 'CheckpointCommitted') return 'checkpoint'
  if (kind === 'PreemptionNoticed') return 'notice'
  // A node that was released with another one of its group, or because its program had ended, was not lost itself.
  if (kind === 'NodeLost' && (body.cause === 'ended' || typeof body.with_node === 'number')) return null
  if (kind === 'CapacityLost' || kind === 'NodeLost') return lossKind(String(body.cause))
  return kind === 'TrainingStarted' && Number(body.attempt) > 1 ? 'resume' : null
}

const CAUSES: Record<string, string> = {
  preempted: 'preempted',
  node_failed: 'nodes lost without notice',
  launcher_restarted: 'launcher restarted',
  paused: 'paused',
  moved: 'moved to other nodes',
  ended: 'program ended',
  launcher_forgot: 'lost by the launcher',
  user_error: 'program failed',
}

/** Words for a cause. A loss that a user requested is called a drill, whatever its cause. */
export const causeWords = (cause: string, drill = false): string => (drill ? 'drill' : CAUSES[cause] ?? cause.replaceAll('_', ' '))
