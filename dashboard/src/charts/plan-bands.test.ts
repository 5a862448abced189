import { expect, it } from 'vitest'
import type { PlanChoice } from '../api/types'
import { bandsOf } from './plan-bands'

const at = (hour: number) => `2026-03-01T${String(hour).padStart(2, '0')}:00:00Z`
const ms = (hour: number) => Date.parse(at(hour))
const choice = (hour: number, until: number | null, rest: Partial<PlanChoice>): PlanChoice => ({
  at: at(hour), until: until === null ? null : at(until), capacity: 'spot', places: ['a'], reason: 'spot_is_available', sentence: 'spot in a', slack_s: 60,
  remaining_s: 60, net_at: null, policy: 'holdfast', policy_version: 1, late: null, moved: false, ...rest,
})
const shape = (...of: Parameters<typeof bandsOf>) => bandsOf(...of).map(({ capacity, from, to }) => [capacity, (from - ms(0)) / 3_600_000, (to - ms(0)) / 3_600_000])

it('draws the choices in the order of time, the present one until now', () => {
  const choices = [choice(5, null, { capacity: 'on_demand', sentence: 'on-demand at once' }), choice(2, 5, { capacity: null }), choice(0, 2, {})]
  expect(shape(choices, [], ms(7))).toEqual([['spot', 0, 2], ['waiting', 2, 5], ['on-demand', 5, 7]])
  expect(bandsOf(choices, [], ms(7)).at(-1)?.words).toBe('On demand: on-demand at once')
})

it('divides a request that waits by the attempts that got its nodes', () => {
  const attempts = [{ ready_at: at(1), ended_at: at(3) }, { ready_at: at(4), ended_at: null }]
  expect(shape([choice(0, 6, { reason: 'wait_for_spot' })], attempts, ms(9))).toEqual([['waiting', 0, 1], ['spot', 1, 3], ['waiting', 3, 4], ['spot', 4, 6]])
  expect(shape([choice(2, 3, { reason: 'wait_for_spot' })], attempts, ms(9))).toEqual([['spot', 2, 3]])
  expect(shape([choice(0, null, { reason: 'wait_for_spot' })], [], ms(1))).toEqual([['waiting', 0, 1]])
})

it('leaves out choices that another one followed at once', () => {
  expect(shape([choice(1, null, {}), choice(1, 1, { capacity: null })], [], ms(2))).toEqual([['spot', 1, 2]])
})
