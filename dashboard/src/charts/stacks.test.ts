import { expect, it } from 'vitest'
import type { Cost } from '../api/types'
import { stacksOf } from './stacks'

const cost = (key: string, part: string, paid_micros: number) => ({ key, part, paid_micros }) as Cost

it('puts the dearest part first on every day, and leaves no day out', () => {
  const costs = [cost('2026-03-01', 'a', 1), cost('2026-03-01', 'b', 5), cost('2026-03-03', 'a', 2)]

  expect(stacksOf(costs, 'paid')).toEqual({
    parts: ['b', 'a'],
    others: 0,
    days: [
      { day: '2026-03-01', micros: [5, 1] },
      { day: '2026-03-02', micros: [0, 0] },
      { day: '2026-03-03', micros: [0, 2] },
    ],
  })
})

it('adds up what could not be told apart', () => {
  const costs = Array.from({ length: 9 }, (_, at) => cost('2026-03-01', `part-${at}`, 10 - at))

  const { parts, others, days } = stacksOf(costs, 'paid')

  expect(parts).toHaveLength(6)
  expect(others).toBe(3)
  expect(days[0]?.micros).toEqual([10, 9, 8, 7, 6, 5, 9])
})
