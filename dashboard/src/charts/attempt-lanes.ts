// The contents of a swimlane chart, computed from attempts and events. Pure.

import type { Attempt, JobEvent } from '../api/types'
import { duration, type Clock } from '../format'
import { causeWords, MARKS, markOf, PHASES, type MarkKind, type Phase } from '../phases'

const PAID = ['setup', 'restore', 'useful', 'stalled', 'lost', 'unmeasured'] as const

export interface Span {
  phase: Phase
  from: number
  to: number
}

export interface Mark {
  kind: MarkKind
  at: number
  words: string
}

export interface Lane {
  attempt: Attempt
  spans: Span[]
  marks: Mark[]
}

export interface Window {
  from: number
  to: number
}

/** The phases of an attempt in the order of the bill, for each start of its ranks. Stalls between steps are drawn as one
 * span before lost work, since the bill has their length and not their times. */
export function spansOf(attempt: Attempt): Span[] {
  let at = Date.parse(attempt.ready_at) - attempt.waiting_ms
  const starts = attempt.starts?.length ? attempt.starts : [attempt.ms]
  const lengths: [Phase, number][] = [
    ['waiting', attempt.waiting_ms],
    ...starts.flatMap((ms) => PAID.map((phase): [Phase, number] => [phase, ms[phase]])),
  ]
  const spans: Span[] = []
  for (const [phase, ms] of lengths) {
    if (ms > 0) spans.push({ phase, from: at, to: at + ms })
    at += ms
  }
  return spans
}

/** A phase and its length; for training also how much of it was on fewer nodes. */
export function spanWords({ phase, from, to }: Span, { degraded_ms = 0 }: Attempt): string {
  const fewer = phase === 'useful' && degraded_ms > 0 ? `; ${duration(degraded_ms)} of the attempt on fewer nodes` : ''
  return `${PHASES[phase].word}: ${duration(to - from)}${fewer}`
}

export function lanesOf(attempts: Attempt[], events: JobEvent[]): Lane[] {
  return attempts.map((attempt) => ({
    attempt,
    spans: spansOf(attempt),
    marks: events.filter((event) => event.body.attempt === attempt.attempt).flatMap((event) => marksOf(event, attempt)),
  }))
}

/** What was lost alone: a node, or a node group, whose nodes are lost together. */
function lostAlone(event: JobEvent, { groups }: Attempt): string {
  const group = groups?.[Number(event.body.group ?? 0)]?.name
  return group ? `group ${group}` : `node ${event.body.node}`
}

function marksOf(event: JobEvent, attempt: Attempt): Mark[] {
  const kind = markOf(event.kind, event.body)
  if (kind === null) return []
  const at = Date.parse(event.at)
  const { step, left_s, cause, snapshot_at } = event.body as Record<string, string | number | null>
  const { one } = MARKS[kind]
  if (kind === 'checkpoint') return [{ kind, at: snapshot_at ? Date.parse(String(snapshot_at)) : at, words: `${one} at step ${step}` }]
  if (kind === 'notice') return [{ kind, at, words: `${one} at step ${step}${left_s === null ? '' : `, ${Math.round(Number(left_s))} s left`}` }]
  if (kind === 'resume') return [{ kind, at, words: `${one} at step ${step}` }]
  const what = event.kind === 'NodeLost' ? `${one} of ${lostAlone(event, attempt)}` : one
  const drill = event.body.drill === true
  return [{ kind, at, words: cause === 'preempted' && !drill ? what : `${what}: ${causeWords(String(cause), drill)}` }]
}

/** From the start of the first attempt to the end of the newest. */
export function extentOf(lanes: Lane[]): Window | null {
  const moments = lanes.flatMap((lane) => lane.spans.flatMap((span) => [span.from, span.to]))
  if (moments.length === 0) return null
  const from = moments.reduce((a, b) => Math.min(a, b))
  const to = moments.reduce((a, b) => Math.max(a, b))
  return { from, to: Math.max(to, from + 1000) }
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800]

/** Round times inside a window, at most `most`. Steps of hours and days are aligned to midnight of the clock in force. */
export function ticksOf({ from, to }: Window, most: number, clock: Clock = 'utc'): number[] {
  const step_ms = 1000 * (STEPS_S.find((s) => (to - from) / (1000 * s) <= most) ?? 2_592_000)
  const ticks: number[] = []
  const shift_ms = clock === 'utc' ? 0 : -60_000 * new Date(from).getTimezoneOffset()
  for (let at = Math.ceil((from + shift_ms) / step_ms) * step_ms - shift_ms; at <= to; at += step_ms) ticks.push(at)
  return ticks
}
