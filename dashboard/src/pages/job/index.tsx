// The page of one job: state, diagnosis, attempts, cost, metrics, and tabs with its records.

import { Suspense } from 'react'
import { Link, useParams } from 'react-router'
import { ResponseError } from '../../api/client'
import { usePlan } from '../../api/plans'
import { useBill, useEvents, useJob, useSeriesNames } from '../../api/queries'
import type { Job } from '../../api/types'
import { bandsOf } from '../../charts/plan-bands'
import { ENDED_STATES, stateWords } from '../../phases'
import { lazyComponent } from '../../ui/lazy'
import { Panel, ErrorMessage, useLastError } from '../../ui/panel'
import { useNow } from '../../ui/time'
import { Tabs } from '../../ui/tabs'
import { Diagnosis } from './diagnosis'
import { Gpus } from './gpus'
import { Head } from './head'
import { Metrics } from './metrics'
import { BillPanel } from './cost'
import { Logs } from './logs'
import { OutputFiles } from './outputs'
import { Checkpoints, EventList, Manifest, Timeline, Task } from './tabs'
import { AttemptsView } from './attempts'

/** Interval in which the present moves in the charts of a plan. */
const NOW_MS = 10_000

const Plan = lazyComponent(() => import('./plan'))

export function JobPage() {
  const { id = '' } = useParams()
  const query = useJob(id)
  const error = useLastError(query)
  // A key per job: form input and scroll positions belong to one job.
  if (query.data) return <Shown key={query.data.id} job={query.data} />
  if (query.isPending && !error) return <div className="skeleton tall" role="status"><span className="visually-hidden">Loading</span></div>
  const is_absent = error instanceof ResponseError && error.status === 404
  return (
    <>
      <h1>{is_absent ? 'Job not found' : `Job ${id}`}</h1>
      <ErrorMessage error={error} {...(!is_absent && { retry: () => void query.refetch() })} />
      <p><Link to="/">All jobs</Link></p>
    </>
  )
}

function Shown({ job }: { job: Job }) {
  const live = !ENDED_STATES.includes(job.state)
  const bill = useBill(job.id, live)
  const events = useEvents(job.id)
  const series = useSeriesNames(job.id, live)
  const plan = usePlan(job.id, live, Boolean(job.is_planned))
  const now = useNow(NOW_MS)
  const attempts = bill.data?.attempts ?? []
  const choices = bandsOf(plan.data?.choices ?? [], attempts, job.ended_at ? Date.parse(job.ended_at) : now)
  return (
    <>
      <title>{`${job.name} · ${stateWords(job)} · Holdfast`}</title>
      <Head job={job} bill={bill.data ?? null} events={events.data ?? []} series={series.data ?? null} live={live} />
      <Diagnosis job={job} live={live} />
      <Panel title="Attempts" query={bill} height="middle" empty={(data) => (data.attempts.length === 0 ? <p>No nodes yet: {job.detail || job.state}.</p> : null)}>
        {(data) => <AttemptsView bill={data} events={events.data ?? []} choices={choices} />}
      </Panel>
      <Panel title="Cost" query={bill} height="middle" aside={<a href={`/v1/jobs/${job.id}/bill?format=csv`} download={`bill-${job.id}.csv`}>Bill as CSV</a>}>
        {(data) => <BillPanel bill={data} />}
      </Panel>
      <Panel title="Training" query={series} height="tall" empty={(data) => (data.series.length === 0 ? <p>No metrics yet. A script logs them with <code>run.log(loss=...)</code>, from its first step on.</p> : null)}>
        {(data) => <Metrics job={job.id} live={live} there_are={data} attempts={attempts} />}
      </Panel>
      <Gpus job={job.id} live={live} />
      <Tabs
        label="Records of this job"
        tabs={[
          { name: 'timeline', title: 'Timeline', body: () => <Timeline job={job} live={live} /> },
          ...(job.is_planned ? [{ name: 'plan', title: 'Plan', body: () => <Suspense fallback={<div className="skeleton tall" role="status"><span className="visually-hidden">Loading</span></div>}><Plan job={job} query={plan} attempts={attempts} now={now} /></Suspense> }] : []),
          { name: 'events', title: 'Events', body: () => <EventList job={job} /> },
          { name: 'checkpoints', title: 'Checkpoints', body: () => <Checkpoints job={job} /> },
          { name: 'logs', title: 'Logs', body: () => <Logs job={job} live={live} /> },
          { name: 'outputs', title: 'Files', body: () => <OutputFiles job={job} /> },
          { name: 'task', title: 'Task', body: () => <Task job={job} /> },
          { name: 'manifest', title: 'Manifest', body: () => <Manifest job={job} /> },
        ]}
      />
    </>
  )
}
