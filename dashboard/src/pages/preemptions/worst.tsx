// The jobs whose lost work has cost the most.

import { Link } from 'react-router'
import type { Query } from '../../api/queries'
import type { Toll, Tolls } from '../../api/types'
import { count, duration, many } from '../../format'
import { Money } from '../../ui/figure'
import { Panel } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'

export function WorstJobs({ query }: { query: Query<Tolls> }) {
  return (
    <Panel title="Worst jobs" query={query} height="middle" empty={({ jobs }) => (jobs.length === 0 ? <p>No job has lost nodes to the market.</p> : null)}>
      {({ jobs }) => <Table name="worst" caption="Jobs whose lost work has cost the most" columns={COLUMNS} rows={jobs} keyOf={(job) => job.job_id} />}
    </Panel>
  )
}

const COLUMNS: Column<Toll>[] = [
  { name: 'name', title: 'Job', value: (job) => job.name, cell: (job) => <><Link to={`/jobs/${job.job_id}`}>{job.name}</Link> <small className="id">{job.job_id}</small></> },
  { name: 'project', title: 'Project', value: (job) => job.project, cell: (job) => job.project },
  { name: 'taken', title: 'Taken', by: 'taken = preempted, or gone without a notice', numeric: true, value: (job) => job.taken, cell: (job) => count(job.taken) },
  { name: 'lost_steps', title: 'Steps lost', numeric: true, value: (job) => job.lost_steps, cell: (job) => count(job.lost_steps) },
  { name: 'lost_s', title: 'Time lost', by: 'time lost = how long nodes made steps that were made again', numeric: true, value: (job) => job.lost_ms / 1000, cell: (job) => duration(job.lost_ms) },
  { name: 'wait_s', title: 'Without nodes', by: 'from each loss until the next nodes, all together', numeric: true, value: (job) => job.wait_ms / 1000, cell: (job) => duration(job.wait_ms) },
  { name: 'lost_usd', title: 'Lost work', by: 'lost work = what nodes cost while they made steps that were made again', numeric: true, value: (job) => job.lost_micros / 1e6, cell: (job) => <Money micros={job.lost_micros} simulated={job.simulated} estimate={job.is_price_estimate} by={`${many(job.lost_steps, 'step')}, ${duration(job.lost_ms)}`} /> },
]
