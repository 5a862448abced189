import { describe, expect, it } from 'vitest'
import { bytes, distance, duration, exactMoney, many, moment, money, share } from './format'

describe('money', () => {
  it.each([
    [0, '$0.00'],
    [1_234_567_890, '$1,234.57'],
    [31_300, '$0.0313'],
    [-15_500, '-$0.0155'],
    [999_999, '$1.0000'],
    [1_000_000, '$1.00'],
  ])('writes %d micro-dollars as %s', (micros, text) => {
    expect(money(micros)).toBe(text)
  })

  it('is exact on demand', () => {
    expect(exactMoney(1)).toBe('$0.000001')
  })
})

describe('time', () => {
  it.each([
    [400, '0.4 s'],
    [61_000, '61 s'],
    [1_800_000, '30 min'],
    [3 * 3_600_000 + 60_000, '3 h 1 min'],
    [50 * 3_600_000, '2 d 2 h'],
    [72 * 3_600_000, '3 d'],
  ])('writes %d ms as %s', (ms, text) => {
    expect(duration(ms)).toBe(text)
  })

  it('says how long ago, and how long to go', () => {
    expect(distance(0, 180_000)).toBe('3 min ago')
    expect(distance(180_000, 0)).toBe('in 3 min')
    expect(distance(0, 900)).toBe('now')
  })

  it('names the zone', () => {
    expect(moment(Date.UTC(2026, 2, 1, 13, 4, 5), 'utc')).toBe('2026-03-01 13:04:05 UTC')
  })
})

it('has a share only of something', () => {
  expect(share(1, 4)).toBe('25 %')
  expect(share(0, 0)).toBeNull()
})

it('counts things and bytes', () => {
  expect([many(1, 'job'), many(1200, 'job')]).toEqual(['1 job', '1,200 jobs'])
  expect([bytes(12), bytes(3 * 1024 * 1024)]).toEqual(['12 B', '3.0 MiB'])
})
