// The home page: what it costs, what runs, and what needs somebody.

import { Link, useSearchParams } from 'react-router'
import { useAttempts, useCosts, useJobs, usePreemptions } from '../api/queries'
import type { Cost, Costs, Job } from '../api/types'
import { Days, MoneyKey } from '../charts/days'
import { extentOf, lanesOf } from '../charts/lanes'
import { Miniature } from '../charts/swimlane'
import { count, duration, exactMoney, many, measured, share } from '../format'
import { Badge, Progress } from '../ui/badge'
import { Absent, Money, Tile } from '../ui/figure'
import { Loaded, Panel, Section } from '../ui/panel'
import { Table, type Column } from '../ui/table'
import { Ago } from '../ui/time'
import { LIVE, OVER } from '../vocabulary'
import { Formula } from './job/money'

/** Over how many days sums are shown. */
const DAYS = '30d'
/** As many as a page of the API has; the command line lists more. */
const MOST_JOBS = 200

export function FleetPage() {
  const live = useJobs(LIVE, MOST_JOBS)
  const over = useJobs(OVER, 50)
  const costs = useCosts('day', DAYS)
  const is_first_run = live.data?.jobs.length === 0 && over.data?.jobs.length === 0
  return (
    <>
      <title>Fleet · Holdfast</title>
      <h1>Fleet</h1>
      {is_first_run ? <FirstRun /> : <Sums live={live.data?.jobs ?? null} costs={costs} />}
      {!is_first_run && (
        <>
          <NeedsYou jobs={[...(live.data?.jobs ?? []), ...(over.data?.jobs ?? [])]} />
          <Panel title="Active" query={live} height="tall" aside={<small>{live.data?.next ? `the newest ${MOST_JOBS}` : ''}</small>}
            empty={({ jobs }) => (jobs.length === 0 ? <p>Nothing runs. <code>holdfast submit job.yaml</code> begins a job.</p> : null)}>
            {({ jobs }) => <Table name="active" caption="Active jobs" searchable columns={RUNNING} rows={jobs} keyOf={(job) => job.id} />}
          </Panel>
          <CostPanel costs={costs} />
          <Panel title="Ended" query={over} height="middle" empty={({ jobs }) => (jobs.length === 0 ? <p>No job has ended yet.</p> : null)}
            aside={<small>{over.data?.next ? 'the newest 50' : ''}</small>}>
            {({ jobs }) => <Table name="ended" caption="Ended jobs" searchable columns={ENDED} rows={jobs} keyOf={(job) => job.id} />}
          </Panel>
        </>
      )}
    </>
  )
}

function Sums({ live, costs }: { live: Job[] | null; costs: ReturnType<typeof useCosts> }) {
  return (
    <Section title="Last 30 days" className="sums">
      <Loaded query={costs} height="short">
        {({ total }) => (
          <dl className="tiles">
            <MoneyTiles total={total} />
            <Active live={live} />
            <Taken />
          </dl>
        )}
      </Loaded>
    </Section>
  )
}

function MoneyTiles({ total }: { total: Cost }) {
  const soft = { simulated: total.simulated, estimate: total.is_price_estimate }
  const usd = exactMoney
  return (
    <>
      <Tile label="Paid" value={<Money micros={total.paid_micros} {...soft} />}
        by={<Formula words="paid = what all nodes cost, with the rules of providers">{[`${count(total.jobs)} jobs, ${usd(total.paid_micros)}`, `of it rules ${usd(total.adjusted_micros)}`]}</Formula>}>
        {many(total.jobs, 'job')}
      </Tile>
      <Tile label="On demand" value={<Money micros={total.on_demand_micros} {...soft} />}
        by={<Formula words="on demand = one setup and the useful time of each job, at the price on demand">{[usd(total.on_demand_micros)]}</Formula>}>
        would have been paid
      </Tile>
      <Tile label={total.saved_micros < 0 ? 'Overpaid' : 'Saved'} value={<Money micros={Math.abs(total.saved_micros)} {...soft} />}
        by={<Formula words="saved = on demand − paid">{[`${usd(total.on_demand_micros)} − ${usd(total.paid_micros)} = ${usd(total.saved_micros)}`]}</Formula>}>
        {share(Math.abs(total.saved_micros), total.on_demand_micros) ?? '–'} of on demand
      </Tile>
      <Tile label="Wasted" value={<Money micros={total.wasted_micros} {...soft} />}
        by={<Formula words="wasted = setup + restore + stalled + lost">{[`${usd(total.micros.setup)} + ${usd(total.micros.restore)} + ${usd(total.micros.stalled)} + ${usd(total.micros.lost)}`]}</Formula>}>
        {share(total.wasted_micros, total.paid_micros) ?? '–'} of paid
      </Tile>
      <Tile label="Lost work" value={share(total.ms.lost, total.provisioned_ms) ?? <Absent why="nothing was provisioned" />}
        by={<Formula words="lost work = lost time ÷ time with nodes">{[`${duration(total.ms.lost)} ÷ ${duration(total.provisioned_ms)}`, `cost ${usd(total.micros.lost)}`]}</Formula>}>
        {duration(total.ms.lost)} done again
      </Tile>
    </>
  )
}

function Active({ live }: { live: Job[] | null }) {
  if (live === null) return <Tile label="Active" value={<Absent why="not known yet" />} by="The list of jobs has not come yet." />
  const gpus = live.reduce((sum, job) => sum + job.gpus, 0)
  const states = [...new Set(live.map((job) => job.state))]
  return (
    <Tile label="Active" value={many(live.length, 'job')}
      by={<Formula words="active = jobs that have not ended; GPUs as their files ask for">{states.map((state) => `${state}: ${live.filter((job) => job.state === state).length}`)}</Formula>}>
      {gpus > 0 ? many(gpus, 'GPU') : 'no GPUs asked for'}
    </Tile>
  )
}

function Taken() {
  const today = usePreemptions('1d')
  const month = usePreemptions(DAYS)
  const taken = today.data?.total.taken
  const between = month.data?.total.node_hours_between
  return (
    <Tile label="Preemptions today" value={taken === undefined ? <Absent why="not known yet" /> : count(taken)}
      by={
        <Formula words="node-hours between preemptions = node-hours ÷ preemptions, over 30 days">
          {[
            month.data ? `${measured(month.data.total.node_hours)} node-hours, ${month.data.total.taken} preemptions` : 'not known yet',
            between == null ? 'told from five preemptions on' : `90 % interval ${measured(month.data?.total.node_hours_between_low ?? 0)} to ${measured(month.data?.total.node_hours_between_high ?? 0)}`,
          ]}
        </Formula>
      }>
      {between == null ? 'too few for a rate' : `one in ${measured(between)} node-hours`}
    </Tile>
  )
}

function NeedsYou({ jobs }: { jobs: Job[] }) {
  const [words] = useSearchParams()
  const all = jobs.filter((job) => whyNeeded(job) !== null)
  if (all.length === 0) return null
  const shown = words.get('needs') === 'all' ? all : all.slice(0, 5)
  return (
    <Section title={`Needs you (${all.length})`} className="needs">
      <ul>
        {shown.map((job) => (
          <li key={job.id}>
            <Badge state={job.state} /> <Link to={`/jobs/${job.id}`}>{job.name}</Link> <span>{whyNeeded(job)}</span>{' '}
            <small><Ago at={job.updated_at} /></small>
          </li>
        ))}
      </ul>
      {all.length > shown.length && <p><Link to="?needs=all">All {all.length}</Link></p>}
    </Section>
  )
}

/** Why somebody has to look at a job, in words; null where nobody has. */
function whyNeeded(job: Job): string | null {
  if (job.warning) return `⚠ ${job.warning}`
  if (job.state === 'failed' || job.state === 'paused') return job.detail || null
  return job.trouble ? `⚠ ${job.trouble}` : null
}

function CostPanel({ costs }: { costs: ReturnType<typeof useCosts> }) {
  const [words, setWords] = useSearchParams()
  const by = words.get('by') ?? 'project'
  const tag = words.get('tag') ?? ''
  const sums = useCosts(by === 'tag' ? `tag:${tag || 'team'}` : by, DAYS)
  const put = (name: string, value: string) => setWords((now) => (now.set(name, value), now), { replace: true })
  return (
    <Panel title="Cost by day" query={costs} height="tall" aside={<MoneyKey />} empty={(data) => (data.costs.length === 0 ? <p>Nothing was paid in 30 days.</p> : null)}>
      {(data) => (
        <>
          <Days costs={data.costs} />
          {data.pending > 0 && <p className="note">{many(data.pending, 'job')} ended a moment ago, and will be in it soon.</p>}
          <div className="row by">
            <label className="row">
              By
              <select value={by} onChange={(event) => put('by', event.target.value)}>
                {['project', 'user', 'tag', 'zone', 'day', 'job'].map((word) => <option key={word}>{word}</option>)}
              </select>
            </label>
            {by === 'tag' && (
              <label className="row">
                Tag <input value={tag} placeholder="team" onChange={(event) => put('tag', event.target.value)} />
              </label>
            )}
          </div>
          <Loaded query={sums}>{(told: Costs) => <Table name="costs" caption={`Cost by ${by}`} columns={COSTS} rows={told.costs} keyOf={(cost) => cost.key} />}</Loaded>
        </>
      )}
    </Panel>
  )
}

function FirstRun() {
  return (
    <Section title="Submit the first job">
      <div className="empty teach">
        <p>Nothing was submitted yet. From a checkout, this one trains a small model on this machine, and costs nothing:</p>
        <pre tabIndex={0}>{'cd examples/tiny_gpt\nholdfast submit job.yaml'}</pre>
        <p>It appears here by itself. Then be the market, and see it come back:</p>
        <pre tabIndex={0}>{'holdfast preempt JOB --notice 30s'}</pre>
        <p><a href="/docs/job-file">What a job file may say</a></p>
      </div>
    </Section>
  )
}

const NAME: Column<Job> = { name: 'name', title: 'Job', value: (job) => job.name, cell: (job) => <><Link to={`/jobs/${job.id}`}>{job.name}</Link> <small className="id">{job.id}</small></> }
const STATE: Column<Job> = { name: 'state', title: 'State', value: (job) => job.state, cell: (job) => <Badge state={job.state} /> }
const PAID: Column<Job> = {
  name: 'paid_usd', title: 'Paid', numeric: true, value: (job) => job.paid_micros / 1e6,
  cell: (job) => <><Money micros={job.paid_micros} simulated={job.simulated} estimate={job.is_price_estimate} />{job.limits.max_cost_usd && <small> of ${job.limits.max_cost_usd}</small>}</>,
}
const SAVED: Column<Job> = {
  name: 'saved_usd', title: 'Saved', numeric: true, value: (job) => (job.on_demand_micros - job.paid_micros) / 1e6,
  cell: (job) => <Money micros={job.on_demand_micros - job.paid_micros} simulated={job.simulated} estimate={job.is_price_estimate} />,
}
const TAKEN: Column<Job> = { name: 'preemptions', title: 'Preempted', numeric: true, value: (job) => job.preemptions, cell: (job) => count(job.preemptions) }

const RUNNING: Column<Job>[] = [
  NAME,
  STATE,
  { name: 'zone', title: 'Where', value: (job) => job.zone, cell: (job) => (job.zone ? `${job.zone} ×${job.nodes}` : <Absent why="not placed yet" />) },
  { name: 'step', title: 'Progress', value: (job) => (job.total_steps ? job.step / job.total_steps : 0), cell: (job) => <Progress step={job.step} total={job.total_steps} /> },
  { name: 'attempt', title: 'Attempts', value: (job) => job.attempt, cell: (job) => <Mini job={job} /> },
  TAKEN,
  PAID,
  SAVED,
]
const ENDED: Column<Job>[] = [
  NAME,
  STATE,
  { name: 'updated_at', title: 'Ended', value: (job) => job.updated_at, cell: (job) => <Ago at={job.updated_at} /> },
  { name: 'project', title: 'Project', value: (job) => job.project, cell: (job) => job.project },
  { name: 'owner', title: 'By', value: (job) => job.owner, cell: (job) => job.owner ?? <Absent why="the owner of the service" /> },
  TAKEN,
  PAID,
  SAVED,
]
const amount = (name: string, title: string, of: (cost: Cost) => number): Column<Cost> => ({
  name: `${name}_usd`, title, numeric: true, value: (cost) => of(cost) / 1e6,
  cell: (cost) => <Money micros={of(cost)} simulated={cost.simulated} estimate={cost.is_price_estimate} />,
})
const COSTS: Column<Cost>[] = [
  { name: 'key', title: 'Of', value: (cost) => cost.key, cell: (cost) => cost.label ?? (cost.key || <Absent why="without one" />) },
  { name: 'jobs', title: 'Jobs', numeric: true, value: (cost) => cost.jobs, cell: (cost) => count(cost.jobs) },
  amount('paid', 'Paid', (cost) => cost.paid_micros),
  amount('on_demand', 'On demand', (cost) => cost.on_demand_micros),
  amount('saved', 'Saved', (cost) => cost.saved_micros),
  amount('wasted', 'Wasted', (cost) => cost.wasted_micros),
]

function Mini({ job }: { job: Job }) {
  const { data } = useAttempts(job.id)
  const lanes = lanesOf(data ?? [], [])
  const window = extentOf(lanes)
  return window ? <Miniature lanes={lanes} window={window} /> : <Absent why="no nodes yet" />
}
