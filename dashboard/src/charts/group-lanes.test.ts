import { expect, it } from 'vitest'
import type { Bill, GroupSpan } from '../api/types'
import { groupLanesOf, phaseOf } from './group-lanes'

const HOUR = 3_600_000
const BEGIN = Date.parse('2026-03-01T00:00:00Z')
const at = (hours: number) => new Date(BEGIN + hours * HOUR).toISOString()

const span = (state: string, since: number, until: number | null, more: Partial<GroupSpan> = {}): GroupSpan => ({
  state, attempt: 1, last_attempt: 1, since: at(since), until: until === null ? null : at(until),
  zone: null, cloud: null, instance_type: null, is_spot: null, micros_per_hour: 0, paid_micros: 0, cause: null, drill: false, ...more,
})
const stay = (since: number, until: number | null, more: Partial<GroupSpan> = {}) =>
  span('running', since, until, { zone: 'aws/us-east-2/us-east-2a', instance_type: 'p4d.24xlarge', is_spot: true, micros_per_hour: 14_400_000, ...more })
const billOf = (...spans: GroupSpan[]) => ({ until: at(9), groups: [{ name: 'second', nodes: 2, spans }] }) as unknown as Bill
const laneOf = (...spans: GroupSpan[]) => groupLanesOf(billOf(...spans))[0]

it('draws each span of a group until the time of the bill', () => {
  const lane = laneOf(span('waiting', 0, 1), span('provisioning', 1, 2), stay(2, 4, { cause: 'preempted' }), span('missing', 4, 5), stay(5, null, { is_spot: false }))

  expect(lane?.bars.map(({ phase, from, to }) => [phase, (from - BEGIN) / HOUR, (to - BEGIN) / HOUR])).toEqual([
    ['waiting', 0, 1], ['provisioning', 1, 2], ['spot', 2, 4], ['missing', 4, 5], ['on-demand', 5, 9],
  ])
})

it('names place, price and length of each span', () => {
  const lane = laneOf(stay(2, 4, { cause: 'preempted' }), span('missing', 4, 5), stay(5, 9, { is_spot: false, instance_type: null }))

  expect(lane?.bars.map(({ words }) => words)).toEqual([
    'second: 2 × p4d.24xlarge in aws/us-east-2/us-east-2a, spot, $14.40/h, for 2 h',
    'second: missing for 60 min: the nodes of the group were lost, while other groups have theirs',
    'second: 2 nodes in aws/us-east-2/us-east-2a, on demand, $14.40/h, for 4 h',
  ])
})

it('marks losses and returns, and no other begins and ends', () => {
  const lane = laneOf(
    span('provisioning', 0, 1), stay(1, 2, { cause: 'preempted' }), span('missing', 2, 3), stay(3, 4, { cause: 'node_failed' }),
    span('missing', 4, 5), stay(5, 6, { cause: 'preempted', drill: true }), span('missing', 6, 7), stay(7, 8, { cause: 'ended' }),
  )

  expect(lane?.marks.map(({ at, words }) => [(at - BEGIN) / HOUR, words])).toEqual([
    [2, 'preemption of group second'],
    [3, 'return of group second in aws/us-east-2/us-east-2a'],
    [4, 'preemption of group second: nodes lost without notice'],
    [5, 'return of group second in aws/us-east-2/us-east-2a'],
    [6, 'preemption of group second: drill'],
    [7, 'return of group second in aws/us-east-2/us-east-2a'],
  ])
})

it('marks soft prices', () => {
  const [lane] = groupLanesOf({ ...billOf(stay(1, 2)), is_price_estimate: true })

  expect(lane?.bars[0]?.words).toContain(', ~$14.40/h,')
})

it('has no lanes without groups', () => {
  expect(groupLanesOf({ until: at(9) } as Bill)).toEqual([])
})

it('draws an unknown state as missing nodes', () => {
  expect(phaseOf(span('moving', 0, 1))).toBe('missing')
})
