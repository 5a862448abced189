import { describe, expect, it } from 'vitest'
import type { Trial } from '../api/types'
import { compare, guessHigher, metricAxis, ordered, parameterAxis, rankedJobs, rankStyle, sortable, varied } from './parallel-axes'

const trial = (number: number, params: Record<string, string> = {}): Trial => ({
  job_id: `job-${number}`, number, params, state: 'training', detail: '', step: 1, best: null, paid_micros: 0, is_stopped_early: false,
})
const curve = (number: number, low: number, high: number) => ({ job_id: `job-${number}`, low, high, last: high, values: [low, high] })

describe('parallel axes', () => {
  it('orders numbers by size and words as given', () => {
    expect(ordered(['1e-3', '3e-4', '10'])).toEqual(['3e-4', '1e-3', '10'])
    expect(ordered(['sgd', 'adam', '1'])).toEqual(['sgd', 'adam', '1'])
    expect([sortable('1e-3'), sortable('adam'), sortable(' '), sortable(undefined)]).toEqual([0.001, 'adam', ' ', null])
  })

  it('leaves out parameters with one value', () => {
    expect(varied({ lr: ['1', '2'], batch: ['8'] })).toEqual(['lr'])
  })

  it('places the values of a parameter at equal distances', () => {
    const axis = parameterAxis('lr', ['1e-2', '1e-4', '1e-3'])
    expect(axis.ticks.map(({ text }) => text)).toEqual(['1e-4', '1e-3', '1e-2'])
    const [job] = compare([trial(1, { lr: '1e-3' })], 'a', [], false)
    expect(job && axis.at(job)).toBe(0.5)
  })

  it('labels only some of many values', () => {
    const values = Array.from({ length: 100 }, (_, at) => String(at))
    expect(parameterAxis('seed', values).ticks.length).toBeLessThanOrEqual(9)
  })

  it('has better values of the metric at the top', () => {
    const jobs = compare([trial(1), trial(2), trial(3)], 'a', [curve(1, 1, 9), curve(2, 3, 5)], false)
    const down = metricAxis('loss', jobs, false, false)
    expect(jobs.map(down.at)).toEqual([1, 0, null])
    const up = metricAxis('score', compare([trial(1), trial(2)], 'a', [curve(1, 1, 9), curve(2, 3, 5)], true), true, false)
    expect(up.ticks.map(({ at }) => Math.round(100 * at))).toEqual([0, 33, 67, 100])
  })

  it('leaves values out that have no logarithm', () => {
    const jobs = compare([trial(1), trial(2), trial(3)], 'a', [curve(1, 1, 1), curve(2, 100, 100), curve(3, -1, -1)], true)
    const axis = metricAxis('x', jobs, true, true)
    expect(jobs.map(axis.at)).toEqual([0, 1, null])
    expect(metricAxis('x', [], true, true).ticks).toEqual([])
  })

  it('ranks jobs without a value last', () => {
    const jobs = compare([trial(1), trial(2), trial(3)], 'a', [curve(2, 2, 2), curve(3, 1, 1)], false)
    expect(rankedJobs(jobs, false).map(({ name }) => name)).toEqual(['a-3', 'a-2', 'a-1'])
    expect(rankedJobs(jobs, true).map(({ name }) => name)).toEqual(['a-2', 'a-3', 'a-1'])
  })

  it('distinguishes thirds without colour', () => {
    expect([0, 3, 6].map((rank) => rankStyle(rank, 7).dash)).toEqual(['none', '7 3', '2 3'])
    expect(rankStyle(0, 1).dash).toBe('none')
  })

  it('guesses from the name which values are better', () => {
    expect([guessHigher('val/accuracy'), guessHigher('loss'), guessHigher('tokens_per_s')]).toEqual([true, false, true])
  })
})
