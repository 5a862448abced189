import { expect, it } from 'vitest'
import type { Cost } from '../api/types'
import { dailyCostsOf } from './daily-costs'

const cost = (key: string, part: string, paid_micros: number) => ({ key, part, paid_micros }) as Cost

it('orders parts by cost and includes every day', () => {
  const costs = [cost('2026-03-01', 'a', 1), cost('2026-03-01', 'b', 5), cost('2026-03-03', 'a', 2)]

  expect(dailyCostsOf(costs, 'paid')).toEqual({
    parts: ['b', 'a'],
    others: 0,
    days: [
      { day: '2026-03-01', micros: [5, 1] },
      { day: '2026-03-02', micros: [0, 0] },
      { day: '2026-03-03', micros: [0, 2] },
    ],
  })
})

it('sums up the parts beyond the limit', () => {
  const costs = Array.from({ length: 9 }, (_, at) => cost('2026-03-01', `part-${at}`, 10 - at))

  const { parts, others, days } = dailyCostsOf(costs, 'paid')

  expect(parts).toHaveLength(6)
  expect(others).toBe(3)
  expect(days[0]?.micros).toEqual([10, 9, 8, 7, 6, 5, 9])
})
