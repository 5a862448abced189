// The queue: who waits, for what and behind whom; what quotas allow and jobs hold; and the shares of users.

import { Link } from 'react-router'
import { send } from '../api/client'
import { useQueue, useQuotas } from '../api/fleet'
import { useProjects } from '../api/queries'
import type { Can, OwnerUsage, Queue, QueuePosition, Quota } from '../api/types'
import { count, many, measured, money } from '../format'
import { Action } from '../ui/action'
import { Field } from '../ui/field'
import { Absent, Money } from '../ui/number'
import { Panel } from '../ui/panel'
import { ACTIONS, Table, type Column } from '../ui/table'
import { Ago } from '../ui/time'

export default function QueuePage() {
  const queue = useQueue()
  const quotas = useQuotas()
  const projects = useProjects()
  const canOf = (project: string): Can | undefined => projects.data?.find(({ name }) => name === project)?.can?.steer
  return (
    <>
      <title>Queue · Holdfast</title>
      <h1>Queue</h1>
      <Panel title="Waiting jobs" query={queue} height="tall" aside={<small>{queue.data && waitingText(queue.data)}</small>}
        empty={({ total }) => (total === 0 ? <p>No job waits for room in a quota.</p> : null)}>
        {({ jobs }) => <Table name="waiting" caption="Waiting jobs, in the order of admission" columns={waitingColumns(jobs, projects.data && canOf)} rows={jobs} keyOf={({ job_id }) => job_id} searchable />}
      </Panel>
      <Panel title="Quotas" query={quotas} height="short" empty={(all) => (all.length === 0 ? <NoQuotas /> : null)}>
        {(all) => <Table name="quotas" caption="Quotas, and what is held of them" columns={QUOTAS} rows={all} keyOf={({ scope, name }) => `${scope}/${name}`} />}
      </Panel>
      <Panel title="Shares of users" query={queue} height="short" empty={({ usage }) => (usage.length === 0 ? <p>No user's jobs wait or hold nodes.</p> : null)}>
        {({ usage }) => (
          <>
            <p className="note">Of jobs with the same priority, that of the user with the least usage is admitted first.</p>
            <Table name="shares" caption="Shares of users, the least first" columns={shareColumns(usage)} rows={usage} keyOf={({ owner }) => owner} />
          </>
        )}
      </Panel>
    </>
  )
}

const waitingText = ({ jobs, total }: Queue): string => (jobs.length < total ? `first ${count(jobs.length)} of ${count(total)}` : many(total, 'job'))

function NoQuotas() {
  return (
    <>
      <p>No quotas: every job starts at once. To share nodes:</p>
      <pre tabIndex={0}>holdfast quota set service --gpus 64 --hourly-cost 400</pre>
    </>
  )
}

function waitingColumns(jobs: QueuePosition[], canOf: ((project: string) => Can | undefined) | undefined): Column<QueuePosition>[] {
  const names = new Map(jobs.map(({ job_id, name }) => [job_id, name]))
  return [
    { name: 'position', title: '#', numeric: true, by: 'place in the order of admission, over all projects', value: (job) => job.position, cell: (job) => count(job.position) },
    { name: 'job', title: 'Job', value: (job) => job.name, cell: (job) => <Link to={`/jobs/${job.job_id}`} title={job.job_id}>{job.name || job.job_id}</Link> },
    { name: 'reason', title: 'Waits for', value: (job) => job.reason, cell: (job) => <Reason job={job} names={names} /> },
    { name: 'owner', title: 'Owner', value: (job) => job.owner, cell: (job) => job.owner ?? <Absent why="service owner" /> },
    { name: 'project', title: 'Project', value: (job) => job.project, cell: (job) => job.project },
    { name: 'priority', title: 'Priority', numeric: true, by: 'higher ones are admitted first; a job that has waited for 24 h counts with the highest', value: (job) => job.priority, cell: (job) => <>{job.priority}{job.is_urgent && <small className="warn"> ⚠ waited 24 h</small>}</> },
    { name: 'queued_at', title: 'Waits since', value: (job) => job.queued_at, cell: (job) => <Ago at={job.queued_at} /> },
    { name: 'gpus', title: 'GPUs', numeric: true, by: 'of all its nodes', value: (job) => job.gpus, cell: (job) => count(job.gpus) },
    { name: 'nodes', title: 'Nodes', numeric: true, value: (job) => job.nodes, cell: (job) => count(job.nodes) },
    { name: 'usd_per_hour', title: 'Per hour', numeric: true, by: 'price of its nodes at the submission', value: (job) => job.micros_per_hour / 1e6, cell: (job) => <Money micros={job.micros_per_hour} by="per hour, at the submission" /> },
    {
      name: ACTIONS, title: 'Actions', value: () => null,
      // Until the projects are known, the action waits instead of giving a wrong reason.
      cell: (job) => !canOf ? <button type="button" disabled>Priority</button> : (
        <Action title="Priority" asks={`Priority of ${job.name || job.job_id}`} confirm="Change priority" can={canOf(job.project)} act={(form) => send('PATCH', `/v1/jobs/${job.job_id}/priority`, { priority: Number(form.get('priority')) })}>
          <Field name="priority" label="Priority" type="number" value={job.priority} required hint="-100 to 100. Higher ones are admitted first." />
        </Action>
      ),
    },
  ]
}

function Reason({ job, names }: { job: QueuePosition; names: ReadonlyMap<string, string> }) {
  const others = job.before - job.behind.length
  const links = job.behind.map((id, at) => <span key={id}>{at > 0 && ', '}<Link to={`/jobs/${id}`}>{names.get(id) || id}</Link></span>)
  return (
    <span className="why">
      {job.is_admitted ? '✓ starts now' : job.never_fits ? <span className="badge bad">✕ {job.shortage}</span> : job.shortage}
      {job.before > 0 && <small> · behind {links}{others > 0 && `${links.length > 0 ? ' and ' : ''}${many(others, 'job')}${links.length > 0 ? ' more' : ''}`}</small>}
    </span>
  )
}

/** What is held of one limit, with a bar if there is one. */
function Held({ held, limit, text }: { held: number; limit: number | null; text: (amount: number) => string }) {
  if (limit === null) return <>{text(held)} <small>no limit</small></>
  return (
    <span className={held > limit ? 'spent over' : 'spent'}>
      <progress value={Math.min(held, limit)} max={Math.max(1, limit)} aria-label={`${text(held)} of ${text(limit)} held`} />
      <span className="number">{text(held)} / {text(limit)}</span>
    </span>
  )
}

const QUOTAS: Column<Quota>[] = [
  { name: 'of', title: 'Scope', value: (one) => `${one.scope} ${one.name}`, cell: (one) => (one.scope === 'service' ? 'service' : <><span className="quiet">{one.scope}</span> {one.name}</>) },
  { name: 'jobs', title: 'Jobs', value: (one) => one.held_jobs, cell: (one) => <Held held={one.held_jobs} limit={one.jobs} text={count} /> },
  { name: 'nodes', title: 'Nodes', value: (one) => one.held_nodes, cell: (one) => <Held held={one.held_nodes} limit={one.nodes} text={count} /> },
  { name: 'gpus', title: 'GPUs', value: (one) => one.held_gpus, cell: (one) => <Held held={one.held_gpus} limit={one.gpus} text={count} /> },
  { name: 'usd_per_hour', title: 'Per hour', value: (one) => one.held_micros_per_hour / 1e6, cell: (one) => <Held held={one.held_micros_per_hour} limit={one.micros_per_hour} text={money} /> },
  { name: 'waiting', title: 'Waiting', numeric: true, by: 'jobs in the queue that it counts, of all projects', value: (one) => one.waiting, cell: (one) => count(one.waiting) },
]

function shareColumns(usage: OwnerUsage[]): Column<OwnerUsage>[] {
  const most = usage.reduce((sum, one) => Math.max(sum, one.gpu_hours), 0)
  return [
    { name: 'owner', title: 'User', value: (one) => one.owner, cell: (one) => one.owner || <span className="quiet">service owner</span> },
    {
      name: 'gpu_hours', title: 'Usage', by: 'accelerator hours, which count half after three days; nodes without accelerators count as one', value: (one) => one.gpu_hours,
      cell: (one) => <span className="spent"><progress value={one.gpu_hours} max={most || 1} aria-label={`${measured(one.gpu_hours)} GPU-hours`} /><span className="number">{measured(one.gpu_hours)} GPU-h</span></span>,
    },
    { name: 'held_jobs', title: 'Jobs held', numeric: true, by: 'admitted jobs that have neither ended nor been paused', value: (one) => one.held_jobs, cell: (one) => count(one.held_jobs) },
    { name: 'held_nodes', title: 'Nodes held', numeric: true, value: (one) => one.held_nodes, cell: (one) => count(one.held_nodes) },
    { name: 'held_gpus', title: 'GPUs held', numeric: true, value: (one) => one.held_gpus, cell: (one) => count(one.held_gpus) },
    { name: 'waiting', title: 'Waiting', numeric: true, by: 'jobs in this queue', value: (one) => one.waiting, cell: (one) => count(one.waiting) },
  ]
}
