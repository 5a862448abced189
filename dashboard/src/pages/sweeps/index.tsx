// The sweeps, newest first.

import { useMemo } from 'react'
import { Link } from 'react-router'
import { useSweepCosts, useSweeps } from '../../api/fleet'
import type { Cost, Sweep } from '../../api/types'
import { totalOf } from '../../charts/daily-costs'
import { count, exactMoney, many } from '../../format'
import { ENDED_STATES } from '../../phases'
import { Absent, Money } from '../../ui/number'
import { Panel } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { Ago } from '../../ui/time'

export default function SweepsPage() {
  const sweeps = useSweeps()
  const costs = useSweepCosts()
  const columns = useMemo(() => columnsOf(new Map(costs.data?.costs.map((cost) => [cost.key, cost]))), [costs.data])
  return (
    <>
      <title>Sweeps · Holdfast</title>
      <h1>Sweeps</h1>
      <Panel title="All sweeps" query={sweeps} height="tall" empty={(all) => (all.length === 0 ? <NoSweeps /> : null)}>
        {(all) => <Table name="sweeps" caption="Sweeps, newest first" columns={columns} rows={all} keyOf={({ id }) => id} searchable />}
      </Panel>
    </>
  )
}

function NoSweeps() {
  return (
    <>
      <p>No sweeps. A sweep submits one job for each combination of parameters:</p>
      <pre tabIndex={0}>holdfast sweep train.yaml --param lr=1e-4,3e-4 --param seed=1..8</pre>
    </>
  )
}

/** The number of jobs in each state, in words. */
export const statesText = (states: Record<string, number>): string =>
  Object.entries(states).map(([state, jobs]) => `${count(jobs)} ${state}`).join(', ')

const endedOf = ({ states }: Sweep): number => ENDED_STATES.reduce((sum, state) => sum + (states[state] ?? 0), 0)

const columnsOf = (costs: ReadonlyMap<string, Cost>): Column<Sweep>[] => [
  { name: 'name', title: 'Sweep', value: (sweep) => sweep.name, cell: (sweep) => <><Link to={`/sweeps/${sweep.id}`}>{sweep.name}</Link> <small className="id">{sweep.id}</small></> },
  { name: 'ended', title: 'Ended', value: (sweep) => endedOf(sweep) / Math.max(1, sweep.job_count), cell: (sweep) => <Ended sweep={sweep} /> },
  { name: 'states', title: 'Jobs', value: (sweep) => statesText(sweep.states), cell: (sweep) => statesText(sweep.states) || <Absent why="all jobs were removed" /> },
  { name: 'parameters', title: 'Parameters', value: (sweep) => paramsText(sweep), cell: (sweep) => <span title={paramsText(sweep)}>{Object.entries(sweep.params).map(([name, values]) => `${name} × ${values.length}`).join(', ')}</span> },
  { name: 'paid_usd', title: 'Paid', numeric: true, by: 'cost of its jobs, and of their copies', value: ({ id }) => (costs.get(id)?.paid_micros ?? 0) / 1e6, cell: ({ id }) => <Paid cost={costs.get(id)} /> },
  { name: 'total_usd', title: 'Total', numeric: true, by: 'total = paid + beside the nodes: storage, requests, egress and disks', value: ({ id }) => totalUsd(costs.get(id)), cell: ({ id }) => <Total cost={costs.get(id)} /> },
  { name: 'budget_usd', title: 'Budget', numeric: true, by: 'maximum cost of the nodes of all jobs together', value: (sweep) => (sweep.max_cost_usd === null ? null : Number(sweep.max_cost_usd)), cell: (sweep) => (sweep.max_cost_usd === null ? <Absent why="no maximum" /> : `$${sweep.max_cost_usd}`) },
  { name: 'project', title: 'Project', value: (sweep) => sweep.project, cell: (sweep) => sweep.project },
  { name: 'owner', title: 'Owner', value: (sweep) => sweep.owner, cell: (sweep) => sweep.owner ?? <Absent why="service owner" /> },
  { name: 'created_at', title: 'Submitted', value: (sweep) => sweep.created_at, cell: (sweep) => <Ago at={sweep.created_at} /> },
]

function Paid({ cost }: { cost: Cost | undefined }) {
  if (!cost) return <Absent why="no costs yet" />
  return <Money micros={cost.paid_micros} simulated={cost.simulated} estimate={cost.is_price_estimate} by="cost of its jobs, and of their copies" />
}

const totalUsd = (cost: Cost | undefined): number => (cost ? totalOf(cost) / 1e6 : 0)

function Total({ cost }: { cost: Cost | undefined }) {
  if (!cost) return <Absent why="no costs yet" />
  const parts = `= paid ${exactMoney(cost.paid_micros)} + beside the nodes ${exactMoney(cost.charged_micros)}`
  return <>{cost.has_unpriced && '≥ '}<Money micros={totalOf(cost)} simulated={cost.simulated} estimate={cost.is_price_estimate} by={`${parts}${cost.has_unpriced ? ', without what has no known price' : ''}`} /></>
}

const paramsText = (sweep: Sweep): string => Object.entries(sweep.params).map(([name, values]) => `${name}: ${values.join(', ')}`).join('; ')

function Ended({ sweep }: { sweep: Sweep }) {
  const ended = endedOf(sweep)
  return (
    <span className="progress">
      <progress value={ended} max={Math.max(1, sweep.job_count)} aria-label={`${ended} of ${many(sweep.job_count, 'job')} ended`} />
      <span className="number">{count(ended)} / {count(sweep.job_count)}</span>
    </span>
  )
}
