import { expect, it } from 'vitest'
import type { Attempt, JobEvent } from '../api/types'
import { extentOf, lanesOf, spansOf, spanWords, ticksOf } from './attempt-lanes'

const ATTEMPT = {
  attempt: 2,
  ready_at: '2026-03-01T00:00:10Z',
  waiting_ms: 4000,
  ms: { setup: 1000, restore: 0, useful: 5000, stalled: 200, lost: 800, unmeasured: 0 },
} as Attempt
const READY = Date.parse(ATTEMPT.ready_at)

it('places the phases of an attempt end to end', () => {
  const spans = spansOf(ATTEMPT)

  expect(spans.map((span) => span.phase)).toEqual(['waiting', 'setup', 'useful', 'stalled', 'lost'])
  expect(spans[0]).toEqual({ phase: 'waiting', from: READY - 4000, to: READY })
  expect(spans.at(-1)?.to).toBe(READY + 7000)
})

it('repeats the phases for each start of the ranks', () => {
  const first = { setup: 1000, restore: 0, useful: 2000, stalled: 0, lost: 800, unmeasured: 0 }
  const second = { setup: 200, restore: 0, useful: 3000, stalled: 0, lost: 0, unmeasured: 0 }

  const spans = spansOf({ ...ATTEMPT, starts: [first, second] } as Attempt)

  expect(spans.map((span) => span.phase)).toEqual(['waiting', 'setup', 'useful', 'lost', 'setup', 'useful'])
  expect(spans[4]).toEqual({ phase: 'setup', from: READY + 3800, to: READY + 4000 })
})

it('names the time on fewer nodes within training', () => {
  const [, setup, useful] = spansOf(ATTEMPT)
  const degraded = { ...ATTEMPT, degraded_ms: 3000 } as Attempt

  expect(useful && spanWords(useful, ATTEMPT)).toBe('Training: 5.0 s')
  expect(useful && spanWords(useful, degraded)).toBe('Training: 5.0 s; 3.0 s of the attempt on fewer nodes')
  expect(setup && spanWords(setup, degraded)).toBe('Setup: 1.0 s')
})

it('marks events of the attempt only', () => {
  const facts = [
    { kind: 'CheckpointCommitted', at: '2026-03-01T00:00:14Z', body: { attempt: 2, step: 9, snapshot_at: '2026-03-01T00:00:13Z' } },
    { kind: 'CapacityLost', at: '2026-03-01T00:00:17Z', body: { attempt: 1, cause: 'preempted' } },
  ] as unknown as JobEvent[]

  const [lane] = lanesOf([ATTEMPT], facts)

  expect(lane?.marks).toEqual([{ kind: 'checkpoint', at: READY + 3000, words: 'checkpoint at step 9' }])
})

it('names a lost node group once', () => {
  const attempt = { ...ATTEMPT, groups: [{ name: 'head' }, { name: 'workers' }] } as Attempt
  const lost = { attempt: 2, group: 1, cause: 'preempted', drill: false }
  const facts = [
    { kind: 'NodeLost', at: '2026-03-01T00:00:14Z', body: { ...lost, node: 1, with_node: null } },
    { kind: 'NodeLost', at: '2026-03-01T00:00:14Z', body: { ...lost, node: 2, with_node: 1 } },
    { kind: 'NodeLost', at: '2026-03-01T00:00:17Z', body: { ...lost, node: 1, with_node: null, cause: 'ended' } },
  ] as unknown as JobEvent[]

  const [lane] = lanesOf([attempt], facts)

  expect(lane?.marks.map(({ words }) => words)).toEqual(['preemption of group workers'])
})

it('names losses, notices and resumes by their marks', () => {
  const facts = [
    { kind: 'TrainingStarted', at: '2026-03-01T00:00:12Z', body: { attempt: 2, step: 9 } },
    { kind: 'PreemptionNoticed', at: '2026-03-01T00:00:16Z', body: { attempt: 2, step: 12, left_s: 30 } },
    { kind: 'CapacityLost', at: '2026-03-01T00:00:17Z', body: { attempt: 2, cause: 'node_failed' } },
  ] as unknown as JobEvent[]

  const [lane] = lanesOf([ATTEMPT], facts)

  expect(lane?.marks.map(({ words }) => words)).toEqual(['resume at step 9', 'termination notice at step 12, 30 s left', 'preemption: nodes lost without notice'])
})

it('names the lost node whose attempt continues', () => {
  const facts = [{ kind: 'NodeLost', at: '2026-03-01T00:00:14Z', body: { attempt: 2, node: 1, cause: 'preempted' } }] as unknown as JobEvent[]

  const [lane] = lanesOf([ATTEMPT], facts)

  expect(lane?.marks).toEqual([{ kind: 'preemption', at: READY + 4000, words: 'preemption of node 1' }])
})

it('names the loss of a node in a drill', () => {
  const facts = [{ kind: 'NodeLost', at: '2026-03-01T00:00:14Z', body: { attempt: 2, node: 1, cause: 'preempted', drill: true } }] as unknown as JobEvent[]

  const [lane] = lanesOf([ATTEMPT], facts)

  expect(lane?.marks.map(({ words }) => words)).toEqual(['preemption of node 1: drill'])
})

it('computes the extent of all lanes', () => {
  expect(extentOf(lanesOf([ATTEMPT], []))).toEqual({ from: READY - 4000, to: READY + 7000 })
  expect(extentOf([])).toBeNull()
})

it('places few round ticks', () => {
  expect(ticksOf({ from: 100, to: 60_000 }, 6)).toEqual([10_000, 20_000, 30_000, 40_000, 50_000, 60_000])
})
