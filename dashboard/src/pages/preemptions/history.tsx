// Preemptions by day, and the list of single preemptions.

import { Link } from 'react-router'
import type { Query } from '../../api/queries'
import type { PreemptionHistory, PreemptionRecord } from '../../api/types'
import { PreemptionDays } from '../../charts/preemption-days'
import { count, duration, elapsed, many } from '../../format'
import { causeWords } from '../../phases'
import { Absent, Money } from '../../ui/number'
import { Panel } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { At, useNow } from '../../ui/time'
import { NoticeLegend } from './notices'

export function History({ query }: { query: Query<PreemptionHistory> }) {
  const today = new Date(useNow(60_000)).toISOString().slice(0, 10)
  return (
    <Panel title="History" query={query} height="tall" aside={<NoticeLegend />} empty={({ preemptions }) => (preemptions.length === 0 ? <p>No preemptions.</p> : null)}>
      {(history) => (
        <>
          {history.days.length > 0 && <PreemptionDays history={history} today={today} />}
          <Table name="history" caption="Preemptions" searchable columns={history.preemptions.some((one) => one.group) ? [...COLUMNS.slice(0, 3), GROUP, ...COLUMNS.slice(3)] : COLUMNS} rows={history.preemptions}
            keyOf={(one) => `${one.job_id} ${one.attempt} ${one.group} ${one.node ?? ''} ${one.at}`}
            foot={history.left_out > 0 && <p className="note">{many(history.left_out, 'older preemption')} not listed; choose a shorter period or a zone.</p>} />
        </>
      )}
    </Panel>
  )
}

/** Shown if any of the preemptions is that of a node group. */
const GROUP: Column<PreemptionRecord> = {
  name: 'group', title: 'Group', by: 'the lost node group, all of whose nodes are lost together', value: (one) => one.group ?? '', cell: (one) => one.group || <span className="quiet">none</span>,
}

const COLUMNS: Column<PreemptionRecord>[] = [
  { name: 'at', title: 'When', value: (one) => one.at, cell: (one) => <At at={one.at} brief /> },
  { name: 'job', title: 'Job', value: (one) => one.name, cell: (one) => <><Link to={`/jobs/${one.job_id}`}>{one.name}</Link> <small className="id">{one.job_id}</small></> },
  { name: 'attempt', title: 'Attempt', numeric: true, value: (one) => one.attempt, cell: (one) => one.attempt },
  { name: 'node', title: 'Node', numeric: true, by: 'the lost node, if the others waited for its replacement', value: (one) => one.node ?? null, cell: (one) => one.node ?? <span className="quiet">all</span> },
  { name: 'zone', title: 'Zone', value: (one) => one.zone, cell: (one) => one.zone },
  { name: 'instance_type', title: 'Node type', value: (one) => one.instance_type, cell: (one) => one.instance_type ?? <Absent why="not reported" /> },
  { name: 'cause', title: 'Cause', value: (one) => one.cause, cell: (one) => causeWords(one.cause) },
  { name: 'notice_s', title: 'Notice', numeric: true, by: 'length of the termination notice', value: (one) => one.notice_s, cell: (one) => (one.notice_s !== null ? `${Math.round(one.notice_s)} s` : <Absent why={one.is_noticed ? 'length not reported' : 'no notice'} />) },
  { name: 'checkpointed', title: 'Checkpointed', by: 'whether a checkpoint was committed within the notice', value: (one) => (one.is_notice_used ? 'yes' : 'no'), cell: (one) => (one.is_notice_used ? '✓ yes' : <span className="quiet">no</span>) },
  { name: 'lost_steps', title: 'Lost steps', numeric: true, value: (one) => one.lost_steps, cell: (one) => count(one.lost_steps) },
  {
    name: 'lost_usd', title: 'Lost work', numeric: true, by: 'cost of nodes during steps that were recomputed', value: (one) => one.lost_micros / 1e6,
    cell: (one) => <Money micros={one.lost_micros} simulated={one.simulated} estimate={one.is_price_estimate} by={`${many(one.lost_steps, 'step')}, ${duration(one.lost_ms)}`} />,
  },
  { name: 'wait_s', title: 'Without nodes', numeric: true, by: 'from the preemption until the next nodes, or the replacement of the node; h:mm:ss', value: (one) => (one.wait_ms === null ? null : one.wait_ms / 1000), cell: (one) => (one.wait_ms === null ? <Absent why="no nodes since" /> : elapsed(one.wait_ms)) },
]
