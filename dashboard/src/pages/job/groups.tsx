// The node groups of a job as tables: the sums of each group, and all its stays and gaps.

import type { Bill, GroupSpan, NodeGroup } from '../../api/types'
import { boundsOf, GROUP_PHASES, phaseOf, shortZone } from '../../charts/group-lanes'
import { elapsed, exactMoney } from '../../format'
import { causeWords } from '../../phases'
import { Absent, Money } from '../../ui/number'
import { Table, type Column } from '../../ui/table'
import { At } from '../../ui/time'

/** A span of a group with the names of both. */
interface Stay {
  group: NodeGroup
  span: GroupSpan
  ms: number
  /** What follows it; null after the last one. */
  next: GroupSpan | null
}

export function GroupTables({ bill }: { bill: Bill }) {
  const groups = bill.groups ?? []
  const stays = groups.flatMap((group) => group.spans.map((span, at) => ({ group, span, ms: lengthOf(span, bill), next: group.spans[at + 1] ?? null })))
  const hourly = groups.reduce((sum, group) => sum + (openOf(group)?.micros_per_hour ?? 0), 0)
  const soft = { simulated: bill.simulated, estimate: bill.is_price_estimate }
  return (
    <>
      <Table name="groups" caption="Node groups" columns={groupColumns(soft)} rows={groups} keyOf={(one) => one.name}
        foot={hourly > 0 && <p className="note">All groups together cost <Money micros={hourly} {...soft} /> an hour now.</p>} />
      <Table name="stays" caption="Placements of node groups" columns={stayColumns(soft)} rows={stays} keyOf={({ group, span }) => `${group.name} ${span.since} ${span.state}`} />
    </>
  )
}

interface Soft {
  simulated: boolean
  estimate: boolean
}

const lengthOf = (span: GroupSpan, bill: Bill): number => {
  const [from, to] = boundsOf(span, bill)
  return to - from
}

/** The span that lasts; undefined after the end of the group. */
const openOf = (group: NodeGroup): GroupSpan | undefined => group.spans.find((span) => span.until === null)

/** Where a group stands now, in words. */
function nowWords(group: NodeGroup): string {
  const span = openOf(group)
  if (!span) return 'no nodes'
  return span.state === 'running' ? `${shortZone(span.zone ?? '')}, ${span.is_spot ? 'spot' : 'on demand'}` : span.state
}

const groupColumns = (soft: Soft): Column<NodeGroup>[] => [
  { name: 'group', title: 'Group', value: (one) => one.name, cell: (one) => <strong>{one.name}</strong> },
  { name: 'nodes', title: 'Nodes', numeric: true, value: (one) => one.nodes, cell: (one) => one.nodes },
  { name: 'now', title: 'Now', value: nowWords, cell: nowWords },
  {
    name: 'usd_per_hour', title: 'Price/h now', numeric: true, by: 'price of all nodes of the group for one hour', value: (one) => (openOf(one)?.micros_per_hour ?? 0) / 1e6,
    cell: (one) => <Money micros={openOf(one)?.micros_per_hour ?? 0} {...soft} />,
  },
  { name: 'preemptions', title: 'Preemptions', numeric: true, by: 'preempted, or lost without notice; all nodes of a group together count once', value: (one) => one.preemptions, cell: (one) => one.preemptions },
  { name: 'running_s', title: 'With nodes', numeric: true, by: 'time with nodes; h:mm:ss', value: (one) => one.running_ms / 1000, cell: (one) => elapsed(one.running_ms) },
  { name: 'missing_s', title: 'Missing', numeric: true, by: `${GROUP_PHASES.missing.means}; h:mm:ss`, value: (one) => one.missing_ms / 1000, cell: (one) => elapsed(one.missing_ms) },
  { name: 'paid_usd', title: 'Paid', numeric: true, by: 'price × time with nodes; the groups add up to the cost of all phases', value: (one) => one.paid_micros / 1e6, cell: (one) => <Money micros={one.paid_micros} {...soft} /> },
]

const stayColumns = (soft: Soft): Column<Stay>[] => [
  { name: 'group', title: 'Group', value: ({ group }) => group.name, cell: ({ group }) => group.name },
  { name: 'attempts', title: 'Attempt', by: 'the first group ends an attempt; nodes of other groups may last over several', value: ({ span }) => attemptsOf(span), cell: ({ span }) => attemptsOf(span) },
  { name: 'state', title: 'State', value: ({ span }) => phaseOf(span), cell: ({ span }) => <span title={GROUP_PHASES[phaseOf(span)].means}>{GROUP_PHASES[phaseOf(span)].word}</span> },
  { name: 'zone', title: 'Zone', value: ({ span }) => span.zone, cell: ({ span }) => (span.zone ? <span title={span.zone}>{shortZone(span.zone)}</span> : <Absent why="no nodes" />) },
  { name: 'instance_type', title: 'Node type', value: ({ span }) => span.instance_type, cell: ({ group, span }) => (span.zone ? `${group.nodes} × ${span.instance_type ?? 'node'}` : <Absent why="no nodes" />) },
  { name: 'usd_per_hour', title: 'Price/h', numeric: true, by: 'newest price of all nodes of the group for one hour', value: ({ span }) => span.micros_per_hour / 1e6, cell: ({ span }) => (span.zone ? <Money micros={span.micros_per_hour} {...soft} /> : <Absent why="no nodes" />) },
  { name: 'since', title: 'From', value: ({ span }) => span.since, cell: ({ span }) => <At at={span.since} brief /> },
  { name: 'length_s', title: 'Length', numeric: true, by: 'h:mm:ss', value: ({ ms }) => ms / 1000, cell: ({ ms }) => elapsed(ms) },
  { name: 'ended_by', title: 'Ended by', value: endOf, cell: endOf },
  {
    name: 'paid_usd', title: 'Paid', numeric: true, value: ({ span }) => span.paid_micros / 1e6,
    cell: ({ span }) => (span.zone ? <Money micros={span.paid_micros} {...soft} by={`${exactMoney(span.micros_per_hour)} an hour at the end`} /> : <Absent why="no nodes" />),
  },
]

const attemptsOf = ({ attempt, last_attempt }: GroupSpan): string => (attempt === last_attempt ? String(attempt) : `${attempt}-${last_attempt}`)

function endOf({ span: { state, until, cause, drill }, next }: Stay): string {
  if (until === null) return state === 'running' ? '● running' : '● lasts'
  if (cause) return `✕ ${causeWords(cause, drill)}`
  if (state === 'running') return next ? 'attempt ended' : 'job ended'
  if (next?.state === 'running') return 'nodes ready'
  return state === 'waiting' ? 'another group has nodes' : 'attempt ended'
}
