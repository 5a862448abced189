import { expect, it } from 'vitest'
import type { Attempt, Point } from '../api/types'
import { columnsOf, keptUntil, lossesOf, namesOf, PACE, withPace } from './series'

const at = (seconds: number) => new Date(1000 * seconds).toISOString()
const point = (attempt: number, step: number, loss: number): Point => ({ attempt, step, at: at(step), values: { loss } })
const ATTEMPTS = [
  { attempt: 1, first_step: 0, last_step: 30, cause: 'preempted' },
  { attempt: 2, first_step: 20, last_step: 40, cause: null },
] as Attempt[]
const POINTS = [point(1, 10, 3), point(1, 20, 2), point(1, 30, 1.5), point(2, 30, 1.6), point(2, 40, 1)]

it('parts what an attempt did in vain from what it kept', () => {
  const { steps, series } = columnsOf(POINTS, ATTEMPTS, 'loss', null)

  expect(steps).toEqual([10, 20, 30, 40])
  expect(series).toEqual([
    { attempt: 1, rolled_back: false, values: [3, 2, null, null] },
    { attempt: 1, rolled_back: true, values: [null, null, 1.5, null] },
    { attempt: 2, rolled_back: false, values: [null, null, 1.6, 1] },
  ])
})

it('shows only what happened in the window', () => {
  const { steps } = columnsOf(POINTS, ATTEMPTS, 'loss', { from: 15_000, to: 25_000 })

  expect(steps).toEqual([20])
})

it('knows how far an attempt was kept, and where nodes were lost', () => {
  expect([keptUntil(ATTEMPTS, 1), keptUntil(ATTEMPTS, 2)]).toEqual([20, Infinity])
  expect(lossesOf(ATTEMPTS)).toEqual([{ attempt: 1, step: 30 }])
})

it('has a pace from the second point of an attempt on', () => {
  expect(withPace(POINTS).map((one) => one.values[PACE])).toEqual([undefined, 1, 1, undefined, 1])
})

it('names the loss first', () => {
  expect(namesOf([{ ...point(1, 1, 1), values: { grad: 1, loss: 2, 'eval/loss': 3 } }])).toEqual(['eval/loss', 'loss', 'grad'])
})
