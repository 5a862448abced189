// The lanes of node groups below those of attempts: when each group had nodes, where, and for which price. Pure.

import type { Bill, GroupSpan, NodeGroup } from '../api/types'
import { duration, many, money } from '../format'
import { causeWords, lossKind, MARKS } from '../phases'

export type GroupPhase = 'waiting' | 'provisioning' | 'spot' | 'on-demand' | 'missing'

/** Names of the parts of a lane, in the order of the legend. */
export const GROUP_PHASES: Record<GroupPhase, { word: string; means: string }> = {
  spot: { word: 'Spot nodes', means: 'nodes of the group run on spot instances' },
  'on-demand': { word: 'On-demand nodes', means: 'nodes of the group run on demand' },
  provisioning: { word: 'Provisioning', means: 'the group has no nodes yet, while another group has its nodes' },
  missing: { word: 'Missing', means: 'the nodes of the group were lost, while other groups have theirs' },
  waiting: { word: 'Waiting', means: 'no group has nodes, and nothing is billed' },
}

export interface GroupBar {
  phase: GroupPhase
  from: number
  to: number
  words: string
}

export interface GroupMark {
  sign: 'loss' | 'return'
  at: number
  words: string
}

export interface GroupLane {
  group: NodeGroup
  bars: GroupBar[]
  marks: GroupMark[]
}

export const groupLanesOf = (bill: Bill): GroupLane[] =>
  (bill.groups ?? []).map((group) => ({
    group,
    bars: group.spans.map((span) => {
      const [from, to] = boundsOf(span, bill)
      return { phase: phaseOf(span), from, to, words: barWords(span, group, bill, to - from) }
    }),
    marks: marksOf(group),
  }))

/** Begin and end of a span; the time of the bill while it lasts. */
export const boundsOf = ({ since, until }: GroupSpan, bill: Bill): [number, number] => [Date.parse(since), Date.parse(until ?? bill.until)]

/** A state of a newer service is drawn as missing nodes. */
export function phaseOf({ state, is_spot }: GroupSpan): GroupPhase {
  if (state === 'running') return is_spot ? 'spot' : 'on-demand'
  return state === 'waiting' || state === 'provisioning' ? state : 'missing'
}

/** The zone without cloud and region. */
export const shortZone = (zone: string): string => zone.split('/').at(-1) ?? zone

function barWords(span: GroupSpan, { name, nodes }: NodeGroup, bill: Bill, ms: number): string {
  const phase = phaseOf(span)
  const { word, means } = GROUP_PHASES[phase]
  if (span.state !== 'running') return `${name}: ${word.toLowerCase()} for ${duration(ms)}: ${means}`
  const kind = span.instance_type ? `${nodes} × ${span.instance_type}` : many(nodes, 'node')
  const soft = bill.simulated || bill.is_price_estimate ? '~' : ''
  return `${name}: ${kind} in ${span.zone}, ${phase === 'spot' ? 'spot' : 'on demand'}, ${soft}${money(span.micros_per_hour)}/h, for ${duration(ms)}`
}

/** A loss at the end of a stay, and a return at the begin of a stay after a loss. */
function marksOf({ name, spans }: NodeGroup): GroupMark[] {
  return spans.flatMap((span, at): GroupMark[] => {
    if (span.state !== 'running') return []
    const before = spans[at - 1]
    const back: GroupMark[] = before?.state === 'missing' ? [{ sign: 'return', at: Date.parse(span.since), words: `return of group ${name} in ${span.zone}` }] : []
    if (!span.until || !span.cause || span.cause === 'ended') return back
    const how = span.cause === 'preempted' && !span.drill ? '' : `: ${causeWords(span.cause, span.drill)}`
    return [...back, { sign: 'loss', at: Date.parse(span.until), words: `${MARKS[lossKind(span.cause)].one} of group ${name}${how}` }]
  })
}
