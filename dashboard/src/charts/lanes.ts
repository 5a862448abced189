// What a swimlane shows, computed from attempts and facts. Pure.

import type { Attempt, Fact } from '../api/types'
import { causeWords, MARKS, markOf, type MarkKind, type Phase } from '../vocabulary'

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

/** The phases of an attempt, one after the other, as the bill cuts them: what was stalled between steps is drawn before
 * what was lost, since the bill says how much it was and not when. */
export function spansOf(attempt: Attempt): Span[] {
  let at = Date.parse(attempt.ready_at) - attempt.waiting_ms
  const lengths: [Phase, number][] = [
    ['waiting', attempt.waiting_ms],
    ['setup', attempt.ms.setup],
    ['restore', attempt.ms.restore],
    ['useful', attempt.ms.useful],
    ['stalled', attempt.ms.stalled],
    ['lost', attempt.ms.lost],
    ['unmeasured', attempt.ms.unmeasured],
  ]
  const spans: Span[] = []
  for (const [phase, ms] of lengths) {
    if (ms > 0) spans.push({ phase, from: at, to: at + ms })
    at += ms
  }
  return spans
}

export function lanesOf(attempts: Attempt[], facts: Fact[]): Lane[] {
  return attempts.map((attempt) => ({
    attempt,
    spans: spansOf(attempt),
    marks: facts.filter((fact) => fact.body.attempt === attempt.attempt).flatMap(drawn),
  }))
}

function drawn(fact: Fact): Mark[] {
  const kind = markOf(fact.kind, fact.body)
  if (kind === null) return []
  const at = Date.parse(fact.at)
  const { step, left_s, cause, snapshot_at } = fact.body as Record<string, string | number | null>
  const { one } = MARKS[kind]
  if (kind === 'checkpoint') return [{ kind, at: snapshot_at ? Date.parse(String(snapshot_at)) : at, words: `${one} at step ${step}` }]
  if (kind === 'notice') return [{ kind, at, words: `${one} at step ${step}${left_s === null ? '' : `, ${Math.round(Number(left_s))} s left`}` }]
  if (kind === 'resume') return [{ kind, at, words: `${one} at step ${step}` }]
  return [{ kind, at, words: cause === 'preempted' ? one : `${one}: ${causeWords(String(cause))}` }]
}

/** From the first moment of the first attempt to the last of the newest. */
export function extentOf(lanes: Lane[]): Window | null {
  const moments = lanes.flatMap((lane) => lane.spans.flatMap((span) => [span.from, span.to]))
  if (moments.length === 0) return null
  const from = moments.reduce((a, b) => Math.min(a, b))
  const to = moments.reduce((a, b) => Math.max(a, b))
  return { from, to: Math.max(to, from + 1000) }
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800]

/** Round moments inside a window, at most so many. */
export function ticksOf({ from, to }: Window, most: number): number[] {
  const step_ms = 1000 * (STEPS_S.find((s) => (to - from) / (1000 * s) <= most) ?? 2_592_000)
  const ticks: number[] = []
  for (let at = Math.ceil(from / step_ms) * step_ms; at <= to; at += step_ms) ticks.push(at)
  return ticks
}
