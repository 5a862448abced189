import { expect, it } from 'vitest'
import type { Attempt, Bucket } from '../api/types'
import { columnsOf, first, marksDue, marksIn, momentsOf, paceOf, ranked, stepMarksOf } from './series'

const at = (seconds: number) => new Date(1000 * seconds).toISOString()
const bucket = (attempt: number, step: number, mean: number | null, lost = false): Bucket => ({
  attempt, lost, mean, min: mean, max: mean, points: mean === null ? 0 : 1, not_finite: mean === null ? 1 : 0,
  first_step: step, last_step: step, first_at: at(step), last_at: at(step),
})
const BUCKETS = [bucket(1, 10, 3), bucket(1, 20, 2), bucket(1, 30, 1.5, true), bucket(2, 30, 1.6), bucket(2, 40, 1)]

it('separates rolled-back steps from kept ones', () => {
  const { steps, series } = columnsOf(BUCKETS, null)

  expect(steps).toEqual([10, 20, 30, 40])
  expect(series).toEqual([
    { attempt: 1, rolled_back: false, values: [3, 2, null, null] },
    { attempt: 1, rolled_back: true, values: [null, null, 1.5, null] },
    { attempt: 2, rolled_back: false, values: [null, null, 1.6, 1] },
  ])
})

it('keeps only buckets in the window', () => {
  expect(columnsOf(BUCKETS, { from: 15_000, to: 25_000 }).steps).toEqual([20])
})

it('counts values that are not finite and leaves them out', () => {
  const { series, not_finite } = columnsOf([...BUCKETS, bucket(2, 50, null)], null)

  expect(not_finite).toBe(1)
  expect(series.at(-1)?.values).toEqual([null, null, 1.6, 1, null])
})

it('computes a speed between points and within a bucket', () => {
  const many = { ...bucket(3, 50, 1), last_step: 70, last_at: at(60) }

  const { steps, series } = paceOf([...BUCKETS, many], null)

  expect(steps).toEqual([20, 30, 40, 70])
  expect(series.map((one) => one.values)).toEqual([
    [1, null, null, null],
    [null, 1, null, null],
    [null, null, 1, null],
    [null, null, null, 2],
  ])
})

it('marks where attempts ended early and where later ones resumed, by the kind of loss', () => {
  const attempts = [
    { attempt: 1, first_step: 0, last_step: 30, cause: 'preempted' },
    { attempt: 2, first_step: 20, last_step: 40, cause: 'node_failed' },
    { attempt: 3, first_step: null, last_step: null, cause: 'launcher_restarted' },
    { attempt: 4, first_step: 40, last_step: 50, cause: 'launcher_forgot' },
    { attempt: 5, first_step: 45, last_step: 60, cause: null },
  ] as Attempt[]

  expect(stepMarksOf(attempts)).toEqual([
    { kind: 'preemption', attempt: 1, step: 30 },
    { kind: 'resume', attempt: 2, step: 20 },
    { kind: 'preemption', attempt: 2, step: 40 },
    { kind: 'resume', attempt: 4, step: 40 },
    { kind: 'loss', attempt: 4, step: 50 },
    { kind: 'resume', attempt: 5, step: 45 },
  ])
  expect(marksDue(attempts)).toEqual({ preemption: 2, loss: 2 })
})

it('selects the marks between two steps', () => {
  const marks = [9, 10, 30, 31].map((step) => ({ attempt: 1, step }))

  expect(marksIn(marks, [10, 20, 30]).map(({ step }) => step)).toEqual([10, 30])
  expect(marksIn(marks, [])).toEqual([])
})

it('finds the time window of steps across attempts', () => {
  const again = { ...bucket(2, 30, 1.6), first_at: at(35), last_at: at(38) }

  expect(momentsOf([bucket(1, 10, 3), bucket(1, 30, 1.5, true), again], [25, 30])).toEqual({ from: 30_000, to: 38_000 })
  expect(momentsOf(BUCKETS, [41, 50])).toBeNull()
})

it('ranks losses first, then throughput', () => {
  expect(first(['eval/loss', 'loss', 'tokens_per_second', 'grad'])).toEqual(['eval/loss', 'tokens_per_second'])
  expect(first(['grad'])).toEqual(['grad'])
  expect(ranked(['grad', 'tokens_per_second', 'loss', 'eval/loss'])).toEqual(['eval/loss', 'loss', 'tokens_per_second', 'grad'])
})
