// The jobs with the highest cost of lost work.

import { Link } from 'react-router'
import type { Query } from '../../api/queries'
import type { PreemptionCost, PreemptionCosts } from '../../api/types'
import { count, duration, elapsed, many } from '../../format'
import { Money } from '../../ui/number'
import { Panel } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'

export function CostliestJobs({ query }: { query: Query<PreemptionCosts> }) {
  return (
    <Panel title="Costliest jobs" query={query} height="middle" empty={({ jobs }) => (jobs.length === 0 ? <p>No job was preempted.</p> : null)}>
      {({ jobs }) => <Table name="worst" caption="Jobs by cost of lost work" columns={COLUMNS} rows={jobs} keyOf={(job) => job.job_id} />}
    </Panel>
  )
}

const COLUMNS: Column<PreemptionCost>[] = [
  { name: 'name', title: 'Job', value: (job) => job.name, cell: (job) => <><Link to={`/jobs/${job.job_id}`}>{job.name}</Link> <small className="id">{job.job_id}</small></> },
  { name: 'project', title: 'Project', value: (job) => job.project, cell: (job) => job.project },
  { name: 'taken', title: 'Preemptions', by: 'nodes preempted, or lost without notice', numeric: true, value: (job) => job.taken, cell: (job) => count(job.taken) },
  { name: 'lost_steps', title: 'Lost steps', numeric: true, value: (job) => job.lost_steps, cell: (job) => count(job.lost_steps) },
  { name: 'lost_s', title: 'Lost time', by: 'training time of steps that were recomputed', numeric: true, value: (job) => job.lost_ms / 1000, cell: (job) => elapsed(job.lost_ms) },
  { name: 'wait_s', title: 'Without nodes', by: 'from each preemption until the next nodes, in total', numeric: true, value: (job) => job.wait_ms / 1000, cell: (job) => elapsed(job.wait_ms) },
  { name: 'lost_usd', title: 'Lost work', by: 'cost of nodes during steps that were recomputed', numeric: true, value: (job) => job.lost_micros / 1e6, cell: (job) => <Money micros={job.lost_micros} simulated={job.simulated} estimate={job.is_price_estimate} by={`${many(job.lost_steps, 'step')}, ${duration(job.lost_ms)}`} /> },
]
