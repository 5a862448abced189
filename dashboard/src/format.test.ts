import { describe, expect, it } from 'vitest'
import { bytes, dayLabel, distance, duration, elapsed, exactMoney, inMebibytes, inSeconds, many, moment, momentToMinute, money, moneyTick, share } from './format'

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

  it('formats past and remaining times', () => {
    expect(distance(0, 180_000)).toBe('3 min ago')
    expect(distance(180_000, 0)).toBe('in 3 min')
    expect(distance(0, 900)).toBe('now')
  })

  it('names the zone', () => {
    expect(moment(Date.UTC(2026, 2, 1, 13, 4, 5), 'utc')).toBe('2026-03-01 13:04:05 UTC')
  })
})

it('gives no share of zero', () => {
  expect(share(1, 4)).toBe('25 %')
  expect(share(0, 0)).toBeNull()
})

it('formats counts and bytes', () => {
  expect([many(1, 'job'), many(1200, 'job')]).toEqual(['1 job', '1,200 jobs'])
  expect([bytes(12), bytes(3 * 1024 * 1024)]).toEqual(['12 B', '3.0 MiB'])
})

it('formats columns in one unit', () => {
  expect([elapsed(0), elapsed(29_400), elapsed(9_960_000)]).toEqual(['0:00:00', '0:00:29', '2:46:00'])
  expect([0, 250e6, 500e6].map(moneyTick([0, 250e6, 500e6]))).toEqual(['$0', '$250', '$500'])
  expect([0, 500_000].map(moneyTick([0, 500_000]))).toEqual(['$0.00', '$0.50'])
  expect(inSeconds(320)).toBe('0.32 s')
  expect(inMebibytes(1_610_612_736)).toBe('1,536.0 MiB')
})

it('writes the day and zone of a time', () => {
  expect(momentToMinute(Date.UTC(2026, 2, 1, 14, 5), 'utc')).toBe('Mar 1 14:05 UTC')
  expect(dayLabel('2026-11-20')).toBe('Nov 20')
})
