// The home page: totals, jobs that need attention, active jobs, costs and ended jobs.

import { useEffect, useState } from 'react'
import { Link, useLocation, useSearchParams } from 'react-router'
import { useAttempts, useCosts, useJobs, usePreemptions, useProjects, type Jobs } from '../api/queries'
import type { Cost, Job, JobSelection } from '../api/types'
import { extentOf, lanesOf } from '../charts/attempt-lanes'
import { besideWords, totalOf } from '../charts/daily-costs'
import { Miniature } from '../charts/swimlane'
import { count, duration, exactMoney, many, measured, money, share } from '../format'
import { Badge, Placement, Progress } from '../ui/badge'
import { Absent, Money, Saved, Tile } from '../ui/number'
import { Loaded, Panel, Section } from '../ui/panel'
import { Table, type Column, type RowChoice } from '../ui/table'
import { Ago } from '../ui/time'
import { LIVE_STATES, ENDED_STATES } from '../phases'
import { CostPanel } from './fleet-costs'
import { NeedsYou } from './needs-you'
import { Formula } from './job/cost'
import { SelectionActions } from './selection'

/** Periods of the totals; 30d by default. */
const SPANS = ['7d', '30d', '90d', '365d']
/** Delay between typing and filtering. A lower value sends a request per letter; a higher value delays the result. */
const TYPING_MS = 250
/** Jobs of one action, as in the API. */
const MOST_CHOSEN = 1_000

export function useSpan(): string {
  const [params] = useSearchParams()
  const asked = params.get('since')
  return asked && SPANS.includes(asked) ? asked : '30d'
}

/** Address parameter of the tag filter; `tag` is the one that costs are grouped by. */
const TAGGED = 'tagged'

/** The other parameters of the filter, with their names in the API. */
const NAMED = ['find', 'project', 'selector', 'owner', 'launcher'] as const

function filterOf(params: URLSearchParams) {
  const named = Object.fromEntries(NAMED.map((name) => [name, params.get(name) ?? ''])) as Record<(typeof NAMED)[number], string>
  return { ...named, tags: params.getAll(TAGGED) }
}

/** The jobs of the filter, as an action names them. */
function selectionOf(params: URLSearchParams): JobSelection {
  const { tags, launcher, ...named } = filterOf(params)
  const state = params.get('state')
  const given = Object.fromEntries(Object.entries(named).filter(([, value]) => value !== ''))
  return { ...given, ...(tags.length > 0 && { tag: tags }), ...(launcher && { launcher: [launcher] }), ...(state && { status: [state] }) }
}

export function FleetPage() {
  const [params] = useSearchParams()
  const filter = filterOf(params)
  const live = useJobs({ statuses: LIVE_STATES, ...filter })
  const over = useJobs({ statuses: ENDED_STATES, ...filter })
  const since = useSpan()
  const costs = useCosts('day', since)
  const is_filtered = filter.tags.length > 0 || NAMED.some((name) => filter[name] !== '')
  const is_first_run = !is_filtered && live.data?.total === 0 && over.data?.total === 0
  const jobs = [...(live.data?.jobs ?? []), ...(over.data?.jobs ?? [])]
  const none = (text: string) => <p>{filter.tags.length > 0 ? 'No job has all of these tags.' : is_filtered ? 'No job matches.' : text}</p>
  const state = LIVE_STATES.find((one) => one === params.get('state'))
  const listed = useJobs({ statuses: state ? [state] : LIVE_STATES, ...filter })
  const { choice, chosen, clear } = useChoice([...(listed.data?.jobs ?? []), ...(over.data?.jobs ?? [])])
  return (
    <>
      <title>Fleet · Holdfast</title>
      <h1>Fleet</h1>
      <RemovalNotice />
      {is_first_run ? (
        <FirstRun />
      ) : (
        <>
          <Totals live={live.data ?? null} costs={costs} since={since} />
          <NeedsYou jobs={jobs} />
          <div className="row"><Filter />{chosen.length > 0 ? (
            <span className="row">
              <SelectionActions title={`Act on ${many(chosen.length, 'selected job')}`} asks={`Act on ${many(chosen.length, 'selected job')}`} target={{ job_ids: chosen }} />
              <button type="button" className="quiet" onClick={clear}>Clear</button>
            </span>
          ) : <SelectionActions title="Act on the selection" asks="Act on the jobs of the filter" target={{ selection: selectionOf(params) }} />}</div>
          <Panel title="Active" query={listed} height="tall" aside={<div className="row"><StateFilter state={state ?? ''} /><small>{listSize(listed)}</small></div>}
            empty={({ total }) => (total === 0 ? (state ? <p>No job is {state}.</p> : none('No active jobs. Submit one with holdfast submit job.yaml.')) : null)}>
            {({ jobs }) => <Table name="active" caption="Active jobs" columns={RUNNING} rows={jobs} keyOf={(job) => job.id} choice={choice} foot={<More jobs={listed} />} />}
          </Panel>
          <CostPanel costs={costs} since={since} />
          <Panel title="Ended" query={over} height="middle" aside={<small>{listSize(over)}</small>}
            empty={({ total }) => (total === 0 ? none('No ended jobs yet.') : null)}>
            {({ jobs }) => <Table name="ended" caption="Ended jobs" columns={ENDED} rows={jobs} keyOf={(job) => job.id} choice={choice} foot={<More jobs={over} />} />}
          </Panel>
        </>
      )}
    </>
  )
}

/** Jobs chosen with checkboxes, of those in the lists: an action applies only to jobs that are seen. */
function useChoice(jobs: Job[]): { choice: RowChoice<Job>; chosen: string[]; clear: () => void } {
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set())
  const chosen = [...new Set(jobs.map(({ id }) => id))].filter((id) => marked.has(id)).slice(0, MOST_CHOSEN)
  const choose = (ids: string[], is_chosen: boolean) => setMarked(new Set(is_chosen ? [...chosen, ...ids] : chosen.filter((id) => !ids.includes(id))))
  return { choice: { chosen: new Set(chosen), choose, nameOf: (job) => job.name }, chosen, clear: () => setMarked(new Set()) }
}

function listSize({ data }: Jobs): string {
  if (!data) return ''
  return data.jobs.length < data.total ? `newest ${count(data.jobs.length)} of ${count(data.total)}` : many(data.total, 'job')
}

function More({ jobs }: { jobs: Jobs }) {
  if (!jobs.hasNextPage) return null
  return (
    <p>
      <button type="button" disabled={jobs.isFetchingNextPage} onClick={() => void jobs.fetchNextPage()}>
        {jobs.isFetchingNextPage ? 'Loading…' : 'Show more'}
      </button>
    </p>
  )
}

/** The result of removing a job. */
function RemovalNotice() {
  const { state } = useLocation() as { state: { removed?: string } | null }
  return state?.removed ? <p className="note" role="status">{state.removed}</p> : null
}

/** The tag filter. */
function Tags() {
  const [params, setParams] = useSearchParams()
  const tags = params.getAll(TAGGED)
  const put = (chosen: string[]) =>
    setParams((now) => {
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

const LAUNCHERS = ['local', 'slurm', 'skypilot']

/** A text that takes effect a moment after the last letter, and follows the address. */
function useTyped(value: string, put: (value: string) => void): [string, (value: string) => void] {
  const [typed, setTyped] = useState(value)
  const [followed, setFollowed] = useState(value)
  // The address changed by a link or by the browser's back button.
  if (value !== followed) {
    setFollowed(value)
    setTyped(value)
  }
  useEffect(() => {
    if (typed === value) return
    const timer = window.setTimeout(() => put(typed), TYPING_MS)
    return () => window.clearTimeout(timer)
  })
  return [typed, setTyped]
}

/** A filter whose text is committed with Enter or by leaving the field: half a selector is an error. */
function Words({ name, label, placeholder, put }: { name: string; label: string; placeholder: string; put: (name: string, value: string) => void }) {
  const [params] = useSearchParams()
  const value = params.get(name) ?? ''
  const commit = (input: HTMLInputElement) => put(name, input.value.trim())
  return (
    <label className="row">
      {label}
      <input key={value} defaultValue={value} placeholder={placeholder} autoComplete="off" maxLength={400} onBlur={(event) => commit(event.target)} onKeyDown={(event) => event.key === 'Enter' && commit(event.currentTarget)} />
    </label>
  )
}

/** The filter of both job tables. The service applies it, so that it also finds jobs beyond the loaded ones. */
function Filter() {
  const [params, setParams] = useSearchParams()
  const projects = useProjects()
  const find = params.get('find') ?? ''
  const put = (name: string, value: string) =>
    setParams((now) => (value ? now.set(name, value) : now.delete(name), now), { replace: true })
  const [typed, setTyped] = useTyped(find, (value) => put('find', value))
  return (
    <form role="search" className="row" aria-label="Filter jobs" onSubmit={(event) => event.preventDefault()}>
      <input type="search" aria-label="Find jobs" placeholder="Find jobs by name or id" value={typed} maxLength={200} onChange={(event) => setTyped(event.target.value)} />
      {(projects.data?.length ?? 0) > 1 && (
        <label className="row">
          Project
          <select value={params.get('project') ?? ''} onChange={(event) => put('project', event.target.value)}>
            <option value="">all</option>
            {projects.data?.map(({ name }) => <option key={name}>{name}</option>)}
          </select>
        </label>
      )}
      <label className="row">
        Launcher
        <select value={params.get('launcher') ?? ''} onChange={(event) => put('launcher', event.target.value)}>
          <option value="">all</option>
          {LAUNCHERS.map((name) => <option key={name}>{name}</option>)}
        </select>
      </label>
      <Words name="owner" label="Owner" placeholder="all" put={put} />
      <Words name="selector" label="Tags match" placeholder="team=nlp,stage!=dev" put={put} />
      <Tags />
    </form>
  )
}

/** Selects one state of the active jobs. */
function StateFilter({ state }: { state: string }) {
  const [, setParams] = useSearchParams()
  const choose = (value: string) => setParams((now) => (value ? now.set('state', value) : now.delete('state'), now), { replace: true })
  return (
    <label className="row">
      State
      <select value={state} onChange={(event) => choose(event.target.value)}>
        <option value="">all</option>
        {LIVE_STATES.map((one) => <option key={one}>{one}</option>)}
      </select>
    </label>
  )
}

interface TotalsProps {
  live: { jobs: Job[]; total: number } | null
  costs: ReturnType<typeof useCosts>
  since: string
}

function Totals({ live, costs, since }: TotalsProps) {
  const [, setParams] = useSearchParams()
  const choose = (span: string) => setParams((now) => (now.set('since', span), now), { replace: true })
  return (
    <Section
      title={`Last ${since.replace('d', ' days')}`}
      className="sums"
      aside={
        <label className="row">
          <span className="quiet">Period</span>
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
            <PreemptionsToday since={since} />
          </dl>
        )}
      </Loaded>
    </Section>
  )
}

/** What is beside the nodes. Jobs on own machines and stores have nothing of it. */
function BesideNodes({ total, soft }: { total: Cost; soft: { simulated: boolean; estimate: boolean } }) {
  return (
    <Tile label="Beside nodes" value={total.has_unpriced && total.charged_micros === 0 ? '–' : <>{total.has_unpriced && '≥ '}<Money micros={total.charged_micros} /></>}
      by={<Formula text="beside the nodes = storage + requests + egress + disks; limits and budgets count the nodes">
        {[besideWords(total)]}
      </Formula>}>
      {total.has_unpriced && 'partly without a price; '}<Money micros={totalOf(total)} {...soft} /> in total
    </Tile>
  )
}

function MoneyTiles({ total }: { total: Cost }) {
  const soft = { simulated: total.simulated, estimate: total.is_price_estimate }
  const usd = exactMoney
  return (
    <>
      <Tile label="Paid" value={<Money micros={total.paid_micros} {...soft} />}
        by={<Formula text="paid = cost of all nodes, with adjustments">{[`${count(total.jobs)} jobs, ${usd(total.paid_micros)}`, `adjustments ${usd(total.adjusted_micros)}`]}</Formula>}>
        {many(total.jobs, 'job')}
      </Tile>
      {(total.charged_micros > 0 || total.has_unpriced) && <BesideNodes total={total} soft={soft} />}
      <Tile label="On demand" value={<Money micros={total.on_demand_micros} {...soft} />}
        by={<Formula text="on demand = one setup and the useful time of each job at the on-demand price; unmeasured time at the price paid">{[usd(total.on_demand_micros)]}</Formula>}>
        the same useful work
      </Tile>
      <Tile label={total.saved_micros < 0 ? 'Overpaid' : 'Saved'} value={<Money micros={Math.abs(total.saved_micros)} {...soft} />}
        by={<Formula text="saved = on demand − paid">{[`${usd(total.on_demand_micros)} − ${usd(total.paid_micros)} = ${usd(total.saved_micros)}`]}</Formula>}>
        {share(Math.abs(total.saved_micros), total.on_demand_micros) ?? '–'} of on demand
      </Tile>
      <Tile label="Wasted" value={<Money micros={total.wasted_micros} {...soft} />}
        by={<Formula text="wasted = setup + restore + stalled + lost">{[`${usd(total.micros.setup)} + ${usd(total.micros.restore)} + ${usd(total.micros.stalled)} + ${usd(total.micros.lost)}`]}</Formula>}>
        {share(total.wasted_micros, total.paid_micros) ?? '–'} of paid
      </Tile>
      <Tile label="Lost work" value={share(total.ms.lost, total.provisioned_ms) ?? <Absent why="no nodes in this period" />}
        by={<Formula text="lost work = lost time ÷ time with nodes">{[`${duration(total.ms.lost)} ÷ ${duration(total.provisioned_ms)}`, `cost ${usd(total.micros.lost)}`]}</Formula>}>
        {duration(total.ms.lost)} recomputed
      </Tile>
    </>
  )
}

function Active({ live }: { live: TotalsProps['live'] }) {
  if (live === null) return <Tile label="Active" value={<Absent why="loading" />} by="Loading jobs." />
  const { jobs, total } = live
  const gpus = jobs.reduce((sum, job) => sum + job.gpus, 0)
  const states = [...new Set(jobs.map((job) => job.state))]
  const is_whole = jobs.length === total
  return (
    <Tile label="Active" value={many(total, 'job')}
      by={
        <Formula text="active = jobs that have not ended; GPUs as requested in their job files">
          {[...states.map((state) => `${state}: ${jobs.filter((job) => job.state === state).length}`), ...(is_whole ? [] : [`newest ${count(jobs.length)} jobs`])]}
        </Formula>
      }>
      {gpus > 0 ? `${many(gpus, 'GPU')}${is_whole ? '' : ` in the newest ${count(jobs.length)}`}` : 'no GPUs requested'}
    </Tile>
  )
}

function PreemptionsToday({ since }: { since: string }) {
  const today = usePreemptions('1d')
  const long = usePreemptions(since)
  const preempted = today.data?.total.taken
  const between = long.data?.total.node_hours_between
  return (
    <Tile label="Preemptions today" value={preempted === undefined ? <Absent why="loading" /> : count(preempted)}
      by={
        <Formula text={`node-hours between preemptions = node-hours ÷ preemptions, over ${since.replace('d', ' days')}`}>
          {[
            long.data ? `${measured(long.data.total.node_hours)} node-hours, ${long.data.total.taken} preemptions` : 'loading',
            between == null ? 'needs at least 5 preemptions' : `90 % CI ${measured(long.data?.total.node_hours_between_low ?? 0)} to ${measured(long.data?.total.node_hours_between_high ?? 0)}`,
          ]}
        </Formula>
      }>
      {between == null ? `rates need at least 5 preemptions in ${since.replace('d', ' days')}` : `mean of ${since.replace('d', ' days')}: one per ${measured(between)} node-hours`}
    </Tile>
  )
}

function FirstRun() {
  return (
    <Section title="Submit the first job">
      <div className="empty onboarding">
        <p>No jobs yet. From a checkout, this job trains a small model on this machine at no cost:</p>
        <pre tabIndex={0}>{'cd examples/tiny_gpt\nholdfast submit job.yaml'}</pre>
        <p>It appears here automatically. Then simulate a preemption and watch the job recover:</p>
        <pre tabIndex={0}>{'holdfast preempt JOB --notice 30s'}</pre>
        <p><a href="/docs/job-file">Job file reference</a></p>
      </div>
    </Section>
  )
}

const NAME: Column<Job> = { name: 'name', title: 'Job', value: (job) => job.name, cell: (job) => <><Link to={`/jobs/${job.id}`}>{job.name}</Link> <small className="id">{job.id}</small></> }
const STATE: Column<Job> = { name: 'state', title: 'State', value: (job) => job.state, cell: (job) => <Badge state={job.state} notice={job.notice} /> }
const PAID: Column<Job> = {
  name: 'paid_usd', title: 'Paid', numeric: true, value: (job) => job.paid_micros / 1e6,
  by: 'paid = all phases of all attempts at the price in force, with adjustments',
  cell: (job) => <><Money micros={job.paid_micros} simulated={job.simulated} estimate={job.is_price_estimate} by={`for ${many(job.attempt, 'attempt')}; the job page has the bill`} />{job.limits.max_cost_usd && <small> of {money(1e6 * Number(job.limits.max_cost_usd))}</small>}</>,
}
const SAVED: Column<Job> = {
  name: 'saved_usd', title: 'Saved', numeric: true, value: (job) => (job.on_demand_micros - job.paid_micros) / 1e6,
  by: 'saved = on demand − paid; on demand = one setup and the useful time at the on-demand price',
  cell: (job) => (
    <Saved micros={job.on_demand_micros - job.paid_micros} simulated={job.simulated} estimate={job.is_price_estimate}
      by={`saved = on demand ${exactMoney(job.on_demand_micros)} − paid ${exactMoney(job.paid_micros)}`} />
  ),
}
const PREEMPTED: Column<Job> = { name: 'preemptions', title: 'Preemptions', numeric: true, by: 'nodes preempted, or lost without notice', value: (job) => job.preemptions, cell: (job) => count(job.preemptions) }

const OWNER: Column<Job> = { name: 'owner', title: 'Owner', value: (job) => job.owner, cell: (job) => job.owner ?? <Absent why="service owner" /> }

const RUNNING: Column<Job>[] = [
  NAME,
  STATE,
  { name: 'zone', title: 'Where', value: (job) => job.zone, cell: (job) => (job.zone ? <Placement zone={job.zone} nodes={job.nodes} /> : <Absent why="no nodes yet" />) },
  { name: 'step', title: 'Progress', value: (job) => (job.total_steps ? job.step / job.total_steps : 0), cell: (job) => <Progress step={job.step} total={job.total_steps} /> },
  OWNER,
  { name: 'gpus', title: 'GPUs', numeric: true, by: 'as requested in the job file', value: (job) => job.gpus, cell: (job) => (job.gpus > 0 ? count(job.gpus) : <Absent why="no GPUs requested" />) },
  PREEMPTED,
  PAID,
  SAVED,
  { name: 'submitted_at', title: 'Submitted', value: (job) => job.submitted_at, cell: (job) => <Ago at={job.submitted_at} /> },
  { name: 'attempt', title: 'Attempts', value: (job) => job.attempt, cell: (job) => <AttemptsCell job={job} /> },
]
const ENDED: Column<Job>[] = [
  NAME,
  STATE,
  { name: 'ended_at', title: 'Ended', value: (job) => job.ended_at ?? job.updated_at, cell: (job) => <Ago at={job.ended_at ?? job.updated_at} /> },
  { name: 'project', title: 'Project', value: (job) => job.project, cell: (job) => job.project },
  OWNER,
  PREEMPTED,
  PAID,
  SAVED,
]
function AttemptsCell({ job }: { job: Job }) {
  const { data, error, isPending } = useAttempts(job.id)
  const lanes = lanesOf(data ?? [], [])
  const window = extentOf(lanes)
  if (window) return <Miniature lanes={lanes} window={window} />
  return <Absent why={data ? 'no nodes yet' : isPending ? 'loading' : `unavailable: ${error?.message}`} />
}
