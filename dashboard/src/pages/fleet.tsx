// The home page: what it costs, what runs, and what needs somebody.

import { useEffect, useState } from 'react'
import { Link, useLocation, useSearchParams } from 'react-router'
import { useAttempts, useCosts, useJobs, usePreemptions, useProjects, type Jobs } from '../api/queries'
import type { Cost, Job } from '../api/types'
import { extentOf, lanesOf } from '../charts/lanes'
import { Miniature } from '../charts/swimlane'
import { count, duration, exactMoney, many, measured, money, share } from '../format'
import { Badge, Place, Progress } from '../ui/badge'
import { Absent, Money, Saved, Tile } from '../ui/figure'
import { Loaded, Panel, Section } from '../ui/panel'
import { Table, type Column } from '../ui/table'
import { Ago } from '../ui/time'
import { LIVE, OVER } from '../vocabulary'
import { CostPanel } from './fleet-costs'
import { Formula } from './job/money'

/** Over how many days sums may be shown; the second unless somebody chooses. */
const SPANS = ['7d', '30d', '90d', '365d']
/** From the last letter of a filter until it holds. Shorter: a request a letter; longer: people wait. */
const TYPING_MS = 250

export function useSpan(): string {
  const [words] = useSearchParams()
  const asked = words.get('since')
  return asked && SPANS.includes(asked) ? asked : '30d'
}

/** The word of the address for tags that jobs must have; `tag` is the one by which costs are split. */
const TAGGED = 'tagged'

export function FleetPage() {
  const [words] = useSearchParams()
  const filter = { find: words.get('find') ?? '', project: words.get('project') ?? '', tags: words.getAll(TAGGED) }
  const live = useJobs({ statuses: LIVE, ...filter })
  const over = useJobs({ statuses: OVER, ...filter })
  const since = useSpan()
  const costs = useCosts('day', since)
  const is_filtered = filter.find !== '' || filter.project !== '' || filter.tags.length > 0
  const is_first_run = !is_filtered && live.data?.total === 0 && over.data?.total === 0
  const jobs = [...(live.data?.jobs ?? []), ...(over.data?.jobs ?? [])]
  const nothing = (words: string) => <p>{filter.tags.length > 0 ? 'No job has all of this.' : is_filtered ? 'No job is called so.' : words}</p>
  return (
    <>
      <title>Fleet · Holdfast</title>
      <h1>Fleet</h1>
      <Removed />
      {is_first_run ? (
        <FirstRun />
      ) : (
        <>
          <Sums live={live.data ?? null} costs={costs} since={since} />
          <NeedsYou jobs={jobs} />
          <Filter />
          <Panel title="Active" query={live} height="tall" aside={<small>{told(live)}</small>}
            empty={({ total }) => (total === 0 ? nothing('Nothing runs. holdfast submit job.yaml begins a job.') : null)}>
            {({ jobs }) => <Table name="active" caption="Active jobs" columns={RUNNING} rows={jobs} keyOf={(job) => job.id} foot={<More jobs={live} />} />}
          </Panel>
          <CostPanel costs={costs} since={since} />
          <Panel title="Ended" query={over} height="middle" aside={<small>{told(over)}</small>}
            empty={({ total }) => (total === 0 ? nothing('No job has ended yet.') : null)}>
            {({ jobs }) => <Table name="ended" caption="Ended jobs" columns={ENDED} rows={jobs} keyOf={(job) => job.id} foot={<More jobs={over} />} />}
          </Panel>
        </>
      )}
    </>
  )
}

function told({ data }: Jobs): string {
  if (!data) return ''
  return data.jobs.length < data.total ? `the newest ${count(data.jobs.length)} of ${count(data.total)}` : many(data.total, 'job')
}

function More({ jobs }: { jobs: Jobs }) {
  if (!jobs.hasNextPage) return null
  return (
    <p>
      <button type="button" disabled={jobs.isFetchingNextPage} onClick={() => void jobs.fetchNextPage()}>
        {jobs.isFetchingNextPage ? 'Asking…' : 'Show more'}
      </button>
    </p>
  )
}

/** What became of a job that was just removed. */
function Removed() {
  const { state } = useLocation() as { state: { removed?: string } | null }
  return state?.removed ? <p className="note" role="status">{state.removed}</p> : null
}

/** The tags that jobs must have: each can be taken away, and more can be added. */
function Tags() {
  const [words, setWords] = useSearchParams()
  const tags = words.getAll(TAGGED)
  const put = (chosen: string[]) =>
    setWords((now) => {
      now.delete(TAGGED)
      for (const tag of new Set(chosen)) now.append(TAGGED, tag)
      return now
    }, { replace: true })
  const add = (input: HTMLInputElement) => {
    const tag = input.value.trim()
    input.value = ''
    if (tag) put([...tags, tag])
  }
  return (
    <>
      <label className="row">
        With tag <input placeholder="name=value" autoComplete="off" maxLength={400} onBlur={(event) => add(event.target)} onKeyDown={(event) => event.key === 'Enter' && add(event.currentTarget)} />
      </label>
      {tags.map((tag) => (
        <button key={tag} type="button" className="tag" aria-label={`Tag ${tag}: remove from the filter`} onClick={() => put(tags.filter((one) => one !== tag))}>
          {tag} ✕
        </button>
      ))}
    </>
  )
}

/** Which jobs are shown: of both tables, by the service, so that it finds those that are not in the page, too. */
function Filter() {
  const [words, setWords] = useSearchParams()
  const projects = useProjects()
  const find = words.get('find') ?? ''
  const [typed, setTyped] = useState(find)
  const [followed, setFollowed] = useState(find)
  // The address was changed by something else than these words: a link, or the way back.
  if (find !== followed) {
    setFollowed(find)
    setTyped(find)
  }
  const put = (name: string, value: string) =>
    setWords((now) => (value ? now.set(name, value) : now.delete(name), now), { replace: true })
  useEffect(() => {
    if (typed === find) return
    const timer = window.setTimeout(() => put('find', typed), TYPING_MS)
    return () => window.clearTimeout(timer)
  })
  return (
    <form role="search" className="row" aria-label="Jobs" onSubmit={(event) => event.preventDefault()}>
      <input type="search" aria-label="Find jobs" placeholder="Find jobs by name or id" value={typed} maxLength={200} onChange={(event) => setTyped(event.target.value)} />
      {(projects.data?.length ?? 0) > 1 && (
        <label className="row">
          Project
          <select value={words.get('project') ?? ''} onChange={(event) => put('project', event.target.value)}>
            <option value="">all</option>
            {projects.data?.map(({ name }) => <option key={name}>{name}</option>)}
          </select>
        </label>
      )}
      <Tags />
    </form>
  )
}

interface SumsProps {
  live: { jobs: Job[]; total: number } | null
  costs: ReturnType<typeof useCosts>
  since: string
}

function Sums({ live, costs, since }: SumsProps) {
  const [, setWords] = useSearchParams()
  const choose = (span: string) => setWords((now) => (now.set('since', span), now), { replace: true })
  return (
    <Section
      title={`Last ${since.replace('d', ' days')}`}
      className="sums"
      aside={
        <label className="row">
          <span className="quiet">Over</span>
          <select value={since} onChange={(event) => choose(event.target.value)}>
            {SPANS.map((span) => <option key={span} value={span}>{span.replace('d', ' days')}</option>)}
          </select>
        </label>
      }
    >
      <Loaded query={costs} height="short">
        {({ total }) => (
          <dl className="tiles">
            <MoneyTiles total={total} />
            <Active live={live} />
            <Taken since={since} />
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
        by={<Formula words="on demand = one setup and the useful time of each job, at the price on demand; time that is not measured, as it was paid">{[usd(total.on_demand_micros)]}</Formula>}>
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

function Active({ live }: { live: SumsProps['live'] }) {
  if (live === null) return <Tile label="Active" value={<Absent why="not known yet" />} by="The list of jobs has not come yet." />
  const { jobs, total } = live
  const gpus = jobs.reduce((sum, job) => sum + job.gpus, 0)
  const states = [...new Set(jobs.map((job) => job.state))]
  const is_whole = jobs.length === total
  return (
    <Tile label="Active" value={many(total, 'job')}
      by={
        <Formula words="active = jobs that have not ended; GPUs as their files ask for">
          {[...states.map((state) => `${state}: ${jobs.filter((job) => job.state === state).length}`), ...(is_whole ? [] : [`of the newest ${count(jobs.length)}`])]}
        </Formula>
      }>
      {gpus > 0 ? `${many(gpus, 'GPU')}${is_whole ? '' : ` of the newest ${count(jobs.length)}`}` : 'no GPUs asked for'}
    </Tile>
  )
}

function Taken({ since }: { since: string }) {
  const today = usePreemptions('1d')
  const long = usePreemptions(since)
  const taken = today.data?.total.taken
  const between = long.data?.total.node_hours_between
  return (
    <Tile label="Preemptions today" value={taken === undefined ? <Absent why="not known yet" /> : count(taken)}
      by={
        <Formula words={`node-hours between preemptions = node-hours ÷ preemptions, over ${since.replace('d', ' days')}`}>
          {[
            long.data ? `${measured(long.data.total.node_hours)} node-hours, ${long.data.total.taken} preemptions` : 'not known yet',
            between == null ? 'told from five preemptions on' : `90 % interval ${measured(long.data?.total.node_hours_between_low ?? 0)} to ${measured(long.data?.total.node_hours_between_high ?? 0)}`,
          ]}
        </Formula>
      }>
      {between == null ? `too few for a rate over ${since.replace('d', ' days')}` : `one in ${measured(between)} node-hours over ${since.replace('d', ' days')}`}
    </Tile>
  )
}

function NeedsYou({ jobs }: { jobs: Job[] }) {
  const [words] = useSearchParams()
  const all = jobs.filter((job) => whyNeeded(job) !== null)
  if (all.length === 0) return null
  const shown = words.get('needs') === 'all' ? all : all.slice(0, 5)
  const whole = new URLSearchParams(words)
  whole.set('needs', 'all')
  return (
    <Section title={`Needs you (${all.length})`} className="needs">
      <ul>
        {shown.map((job) => (
          <li key={job.id}>
            <Badge state={job.state} notice={job.notice} /> <Link to={`/jobs/${job.id}`}>{job.name}</Link> <span>{whyNeeded(job)}</span>{' '}
            <small><Ago at={job.ended_at ?? job.updated_at} /></small>
          </li>
        ))}
      </ul>
      {all.length > shown.length && <p><Link to={`?${whole}`}>All {all.length}</Link></p>}
    </Section>
  )
}

/** Why somebody has to look at a job, in words; null where nobody has. */
function whyNeeded(job: Job): string | null {
  if (job.warning) return `⚠ ${job.warning}`
  if (job.state === 'failed' || job.state === 'paused') return job.detail || null
  return job.trouble ? `⚠ ${job.trouble}` : null
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
const STATE: Column<Job> = { name: 'state', title: 'State', value: (job) => job.state, cell: (job) => <Badge state={job.state} notice={job.notice} /> }
const PAID: Column<Job> = {
  name: 'paid_usd', title: 'Paid', numeric: true, value: (job) => job.paid_micros / 1e6,
  by: 'paid = all phases of all its attempts, at the price of each moment, with the rules of providers',
  cell: (job) => <><Money micros={job.paid_micros} simulated={job.simulated} estimate={job.is_price_estimate} by={`for ${many(job.attempt, 'attempt')}; its page has the bill`} />{job.limits.max_cost_usd && <small> of {money(1e6 * Number(job.limits.max_cost_usd))}</small>}</>,
}
const SAVED: Column<Job> = {
  name: 'saved_usd', title: 'Saved', numeric: true, value: (job) => (job.on_demand_micros - job.paid_micros) / 1e6,
  by: 'saved = on demand − paid; on demand = one setup and the useful time, at the price on demand',
  cell: (job) => (
    <Saved micros={job.on_demand_micros - job.paid_micros} simulated={job.simulated} estimate={job.is_price_estimate}
      by={`saved = on demand ${exactMoney(job.on_demand_micros)} − paid ${exactMoney(job.paid_micros)}`} />
  ),
}
const TAKEN: Column<Job> = { name: 'preemptions', title: 'Preempted', numeric: true, by: 'how often nodes were taken: preempted, or gone without a notice', value: (job) => job.preemptions, cell: (job) => count(job.preemptions) }

const RUNNING: Column<Job>[] = [
  NAME,
  STATE,
  { name: 'zone', title: 'Where', value: (job) => job.zone, cell: (job) => (job.zone ? <Place zone={job.zone} nodes={job.nodes} /> : <Absent why="not placed yet" />) },
  { name: 'step', title: 'Progress', value: (job) => (job.total_steps ? job.step / job.total_steps : 0), cell: (job) => <Progress step={job.step} total={job.total_steps} /> },
  { name: 'attempt', title: 'Attempts', value: (job) => job.attempt, cell: (job) => <Mini job={job} /> },
  TAKEN,
  PAID,
  SAVED,
]
const ENDED: Column<Job>[] = [
  NAME,
  STATE,
  { name: 'ended_at', title: 'Ended', value: (job) => job.ended_at ?? job.updated_at, cell: (job) => <Ago at={job.ended_at ?? job.updated_at} /> },
  { name: 'project', title: 'Project', value: (job) => job.project, cell: (job) => job.project },
  { name: 'owner', title: 'By', value: (job) => job.owner, cell: (job) => job.owner ?? <Absent why="the owner of the service" /> },
  TAKEN,
  PAID,
  SAVED,
]
function Mini({ job }: { job: Job }) {
  const { data, error, isPending } = useAttempts(job.id)
  const lanes = lanesOf(data ?? [], [])
  const window = extentOf(lanes)
  if (window) return <Miniature lanes={lanes} window={window} />
  return <Absent why={data ? 'no nodes yet' : isPending ? 'not known yet' : `not known: ${error?.message}`} />
}
