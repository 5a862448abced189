import { expect, it } from 'vitest'
import { extentOfRanges, sideOf } from './range-scale'

const ranges = [{ name: 'a', p10: 10, p50: 12, p90: 20 }, { name: 'b', p10: 15, p50: 16, p90: 18 }]

it('covers the ranges, what has happened, and near limits', () => {
  expect(extentOfRanges(ranges, [])).toEqual({ low: 10, high: 20 })
  expect(extentOfRanges(ranges, [{ name: 'paid', value: 2, is_actual: true }])).toEqual({ low: 2, high: 20 })
  expect(extentOfRanges(ranges, [{ name: 'budget', value: 50 }])).toEqual({ low: 10, high: 50 })
})

it('leaves limits outside that would squeeze the ranges', () => {
  const extent = extentOfRanges(ranges, [{ name: 'budget', value: 500 }])
  expect(extent).toEqual({ low: 10, high: 20 })
  expect([500, 10, 1].map((value) => sideOf(value, extent))).toEqual(['right', null, 'left'])
})
