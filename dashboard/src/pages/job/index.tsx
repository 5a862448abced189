// One job: how it stands, what happened, what it cost, and what can be done.

import { Link, useParams } from 'react-router'
import { Refused } from '../../api/client'
import { useBill, useFacts, useJob, useSeriesNames } from '../../api/queries'
import type { Bill, Job } from '../../api/types'
import { count, duration, many, money } from '../../format'
import { noticeMeans, OVER, stateWords } from '../../vocabulary'
import { Badge, Progress } from '../../ui/badge'
import { Money } from '../../ui/figure'
import { Panel, Trouble } from '../../ui/panel'
import { Tabs } from '../../ui/tabs'
import { Ago, useNow } from '../../ui/time'
import { Actions } from './actions'
import { Curves } from './curves'
import { BillPanel } from './money'
import { Logs } from './logs'
import { Checkpoints, Facts, Manifest, Story, Task } from './tabs'
import { Timeline } from './timeline'

export function JobPage() {
  const { id = '' } = useParams()
  const query = useJob(id)
  // What one job has shown, and what was typed about it, is of no other.
  if (query.data) return <Shown key={query.data.id} job={query.data} />
  if (query.isPending && !query.error) return <div className="skeleton tall" role="status"><span className="unseen">Loading</span></div>
  const is_absent = query.error instanceof Refused && query.error.status === 404
  return (
    <>
      <h1>{is_absent ? 'There is no such job' : `Job ${id}`}</h1>
      <Trouble error={query.error} {...(!is_absent && { retry: () => void query.refetch() })} />
      <p><Link to="/">All jobs</Link></p>
    </>
  )
}

function Shown({ job }: { job: Job }) {
  const live = !OVER.includes(job.state)
  const bill = useBill(job.id, live)
  const facts = useFacts(job.id)
  const series = useSeriesNames(job.id, live)
  return (
    <>
      <title>{`${job.name} · ${stateWords(job)} · Holdfast`}</title>
      <Head job={job} bill={bill.data ?? null} />
      <Panel title="Attempts" query={bill} height="middle" empty={(data) => (data.attempts.length === 0 ? <p>No nodes yet: {job.detail || job.state}.</p> : null)}>
        {(data) => <Timeline attempts={data.attempts} facts={facts.data ?? []} />}
      </Panel>
      <Panel title="Cost" query={bill} height="middle" aside={<a href={`/v1/jobs/${job.id}/bill?format=csv`} download={`bill-${job.id}.csv`}>Bill as CSV</a>}>
        {(data) => <BillPanel bill={data} />}
      </Panel>
      <Panel title="Training" query={series} height="tall" empty={(data) => (data.series.length === 0 ? <p>No points yet. A script reports them with <code>run.log(loss=...)</code>; they come with its first steps.</p> : null)}>
        {(data) => <Curves job={job.id} live={live} there_are={data} attempts={bill.data?.attempts ?? []} />}
      </Panel>
      <Tabs
        label="More of this job"
        tabs={[
          { name: 'story', title: 'Story', body: () => <Story job={job} live={live} /> },
          { name: 'events', title: 'Events', body: () => <Facts job={job} /> },
          { name: 'checkpoints', title: 'Checkpoints', body: () => <Checkpoints job={job} /> },
          { name: 'logs', title: 'Logs', body: () => <Logs job={job} live={live} /> },
          { name: 'task', title: 'Task', body: () => <Task job={job} /> },
          { name: 'manifest', title: 'Manifest', body: () => <Manifest job={job} /> },
        ]}
      />
    </>
  )
}

function Head({ job, bill }: { job: Job; bill: Bill | null }) {
  const tags = Object.entries(job.tags)
  return (
    <div className="head">
      <p className="crumbs"><Link to="/">Fleet</Link> / <span className="id">{job.id}</span></p>
      <div className="row spread">
        <h1>{job.name}</h1>
        <Actions job={job} />
      </div>
      <div className="sentence" role="group" aria-label="State">
        <Badge state={job.state} notice={job.notice} /> · <Sentence job={job} bill={bill} />
      </div>
      {job.notice && <Notice notice={job.notice} />}
      {job.detail && <p className="detail">{job.detail}</p>}
      {job.warning && <p className="note warn">⚠ {job.warning}</p>}
      {job.trouble && <p className="note warn">⚠ The last look at it gave nothing: {job.trouble}</p>}
      <div className="row facts">
        <Progress step={job.step} total={job.total_steps} />
        <span>project <strong>{job.project}</strong></span>
        <span>{job.owner ? <>by <strong>{job.owner}</strong></> : 'by the owner of the service'}</span>
        <span>submitted <Ago at={job.submitted_at} /></span>
        {job.last_checkpoint_at && <span>durable step {count(job.last_checkpoint_step ?? 0)}, checkpoint <Ago at={job.last_checkpoint_at} /></span>}
        {tags.map(([name, value]) => <Link key={name} className="tag" to={`/?${new URLSearchParams({ tagged: `${name}=${value}` })}`} title="All jobs with this tag">{name}={value}</Link>)}
        <a href={`/v1/jobs/${job.id}/bundle`} download={`holdfast-${job.id}.zip`} title="The job file, tasks, manifest, facts, bill, prices, checkpoints and story as one zip">Evidence as zip</a>
      </div>
    </div>
  )
}

/** A preemption that is under way. */
function Notice({ notice }: { notice: NonNullable<Job['notice']> }) {
  const now = useNow()
  const left_ms = notice.left_s === null ? 0 : Date.parse(notice.at) + 1000 * notice.left_s - now
  return (
    <p className="note warn" role="status">
      ⚠ Termination notice <Ago at={notice.at} /> at step {count(notice.step)}: {noticeMeans(notice.phase)}.
      {left_ms > 0 && ` Its nodes go in ${duration(left_ms)}.`}
    </p>
  )
}

/** How it stands, in one sentence. */
function Sentence({ job, bill }: { job: Job; bill: Bill | null }) {
  const total = job.total_steps === null ? '' : ` of ${count(job.total_steps)}`
  const soft = { simulated: job.simulated, estimate: job.is_price_estimate }
  const is_calm = !job.notice && job.preemptions + job.failures === 0 && job.lost_steps === 0
  const lost = bill?.losses.reduce((sum, loss) => ({ ms: sum.ms + loss.lost_ms, micros: sum.micros + loss.lost_micros }), { ms: 0, micros: 0 })
  return (
    <>
      {job.attempt > 0 && <>attempt {job.attempt}{job.zone && <> in {job.zone}</>}, </>}
      reported step {count(job.step)}{total};{' '}
      {is_calm ? (
        'no preemption and no failure so far'
      ) : (
        <>
          {many(job.preemptions, 'preemption')} and {many(job.failures, 'failure')} of {job.max_failures} so far, which lost {many(job.lost_steps, 'step')}
          {lost && lost.ms > 0 && <> and {duration(lost.ms)} for <Money micros={lost.micros} {...soft} /></>}
        </>
      )}
      ; paid{' '}
      <Money micros={job.paid_micros} {...soft} />
      {job.limits.max_cost_usd && <> of {money(1e6 * Number(job.limits.max_cost_usd))}</>}.
    </>
  )
}
