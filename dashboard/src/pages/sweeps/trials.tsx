// The jobs of a sweep as a table: parameters that differ, state, metric and cost.

import { Link, useSearchParams } from 'react-router'
import type { SweepDetail } from '../../api/types'
import { sortable, varied, type Compared } from '../../charts/parallel-axes'
import { count, measured } from '../../format'
import { Badge } from '../../ui/badge'
import { Absent, Money } from '../../ui/number'
import { Table, type Column } from '../../ui/table'
import type { Soft } from './head'

interface TrialsProps {
  sweep: SweepDetail
  /** From the best to the worst. */
  jobs: Compared[]
  best: Compared | null
  metric: string
  soft: Soft
  chosen: ReadonlySet<string>
  choose: (keys: string[], is_chosen: boolean) => void
}

export function TrialTable({ sweep, jobs, best, metric, soft, chosen, choose }: TrialsProps) {
  const [params] = useSearchParams()
  const sort = params.get('jobs.sort')?.replace('-', '')
  const columns: Column<Compared>[] = [
    {
      name: 'job', title: 'Job', value: ({ trial }) => trial.number,
      cell: (job) => <>{job === best && <span className="badge good" title="best value">★<span className="visually-hidden"> best </span></span>} <Link to={`/jobs/${job.trial.job_id}`}>{job.name}</Link></>,
    },
    { name: 'state', title: 'State', value: ({ trial }) => (trial.is_stopped_early ? 'stopped early' : trial.state), cell: ({ trial }) => <span title={trial.detail}><Badge state={trial.state} />{trial.is_stopped_early && <small> ✕ stopped early</small>}</span> },
    ...varied(sweep.params).map((name): Column<Compared> => ({ name: `param.${name}`, title: name, value: ({ trial }) => sortable(trial.params[name]), cell: ({ trial }) => trial.params[name] ?? <Absent why="no value" /> })),
    { name: 'step', title: 'Step', numeric: true, by: 'furthest step that it has reached', value: ({ trial }) => trial.step, cell: ({ trial }) => count(trial.step) },
    ...(metric ? metricColumns(metric) : []),
    { name: 'paid_usd', title: 'Paid', numeric: true, by: 'cost of its nodes so far', value: ({ trial }) => trial.paid_micros / 1e6, cell: ({ trial }) => <Money micros={trial.paid_micros} {...soft} by="cost of its nodes so far" /> },
  ]
  const isLast = (job: Compared): boolean => (sort === 'best' && job.best === null) || (sort === 'last' && job.last === null)
  return (
    <Table name="jobs" caption={metric ? `Jobs by best ${metric}` : 'Jobs of the sweep'} columns={columns} rows={jobs} keyOf={({ trial }) => trial.job_id} isLast={isLast} searchable
      choice={{ chosen, choose, nameOf: (job) => job.name }} />
  )
}

const metricColumns = (metric: string): Column<Compared>[] => [
  { name: 'best', title: `Best ${metric}`, numeric: true, by: 'best value that it has logged at any step', value: ({ best }) => best, cell: ({ best }) => valueOf(best) },
  { name: 'last', title: 'Last', numeric: true, by: 'mean of the last interval of its curve', value: ({ last }) => last, cell: ({ last }) => valueOf(last) },
]

const valueOf = (value: number | null) => (value === null ? <Absent why="no value yet" /> : measured(value))
