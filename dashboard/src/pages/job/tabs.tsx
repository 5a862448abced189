// Records of a job: timeline, events, checkpoints, rendered task and manifest.

import { ResponseError } from '../../api/client'
import { useCheckpoints, useEvents, useManifest, useTimeline } from '../../api/queries'
import type { Checkpoint, JobEvent, Job, Sentence } from '../../api/types'
import { count, dayOf, inMebibytes, inSeconds, many, type Clock } from '../../format'
import { usePreferences } from '../../preferences'
import { Loaded } from '../../ui/panel'
import { Absent } from '../../ui/number'
import { Table, type Column } from '../../ui/table'
import { At } from '../../ui/time'
import { markOf, MARKS, ENDED_STATES } from '../../phases'

/** A day heading before the first sentence of each day; none if all are on one day. */
function daysOf(sentences: Sentence[], clock: Clock): (string | null)[] {
  const days = sentences.map((one) => (one.at ? dayOf(Date.parse(one.at), clock) : null))
  const known = days.filter((day) => day !== null)
  if (new Set(known).size < 2) return days.map(() => null)
  return days.map((day, at) => (day !== days.slice(0, at).findLast((before) => before !== null) ? day : null))
}

export const Timeline = ({ job, live }: { job: Job; live: boolean }) => (
  <Loaded query={useTimeline(job.id, live)}>{(sentences) => <Sentences sentences={sentences} />}</Loaded>
)

function Sentences({ sentences }: { sentences: Sentence[] }) {
  const { clock } = usePreferences()
  const days = daysOf(sentences, clock)
  return (
    <ol className="timeline">
      {sentences.map((one, at) => (
        <li key={at}>
          {days[at] && <span className="day">{days[at]}</span>}
          {one.at ? <At at={one.at} short /> : <span className="quiet">now</span>}
          <span>{one.text}</span>
        </li>
      ))}
    </ol>
  )
}

/** The kind of an event, with the name of its chart mark. */
function EventKind({ event }: { event: JobEvent }) {
  const mark = markOf(event.kind, event.body)
  return <><strong>{event.kind}</strong>{mark && <small> {MARKS[mark].one}{event.body.drill === true && ': drill'}</small>}</>
}

const eventColumns = (groups: string[]): Column<JobEvent>[] => [
  { name: 'seq', title: 'No.', numeric: true, cell: (event) => event.seq, value: (event) => event.seq },
  { name: 'at', title: 'When', cell: (event) => <At at={event.at} />, value: (event) => event.at },
  { name: 'source', title: 'Source', cell: (event) => event.source, value: (event) => event.source },
  { name: 'kind', title: 'Event', cell: (event) => <EventKind event={event} />, value: (event) => event.kind },
  { name: 'body', title: 'Details', cell: (event) => <code className="body">{brief(event, groups)}</code>, value: (event) => JSON.stringify(event.body) },
]

const isNumbers = (value: unknown): boolean => Array.isArray(value) && value.length > 0 && value.every((one) => typeof one === 'number')

/** The names of the node groups of a job, in order; empty without groups. */
function groupNames(events: JobEvent[]): string[] {
  const named = events.find((event) => event.kind === 'NodesReady')?.body.groups
  return Array.isArray(named) ? named.map((group: { name?: string }) => group.name ?? '') : []
}

/** The fields of an event; a node group by its name. */
function brief(event: JobEvent, groups: string[]): string {
  return Object.entries(event.body)
    .filter(([name, value]) => !['at', 'source', 'spec', 'task'].includes(name) && value !== null && value !== '' && (typeof value !== 'object' || isNumbers(value)))
    .map(([name, value]) => `${name}=${(name === 'group' && groups[Number(value)]) || String(value)}`)
    .join('  ')
}

export function EventList({ job }: { job: Job }) {
  return (
    <Loaded query={useEvents(job.id)}>
      {(events) => (
        <>
          <Table name="events" caption="Events" searchable columns={eventColumns(groupNames(events))} rows={events} keyOf={(event) => String(event.seq)} />
          <p>
            <a href={`/v1/jobs/${job.id}/events`}>Events as JSON</a>
          </p>
        </>
      )}
    </Loaded>
  )
}

const STATE_MARKS: Record<string, string> = { complete: '✓', failed: '✕', damaged: '✕', abandoned: '◫', removed: '○' }

const CHECKPOINTS: Column<Checkpoint>[] = [
  { name: 'step', title: 'Step', numeric: true, by: 'step whose state the checkpoint holds; durable once the checkpoint is complete', cell: (one) => count(one.step), value: (one) => one.step },
  { name: 'state', title: 'State', cell: (one) => <span title={one.detail}>{one.superseded ? `○ superseded, ${one.detail}` : `${STATE_MARKS[one.state] ?? '·'} ${one.state}`}</span>, value: (one) => (one.superseded ? 'superseded' : one.state) },
  { name: 'attempt', title: 'Attempt', numeric: true, cell: (one) => one.attempt, value: (one) => one.attempt },
  { name: 'at', title: 'Committed at', cell: (one) => <At at={one.at} />, value: (one) => one.at },
  { name: 'size_bytes', title: 'Size', numeric: true, cell: (one) => (one.size_bytes === null ? <Absent why="checkpoint failed" /> : inMebibytes(one.size_bytes)), value: (one) => one.size_bytes },
  { name: 'stall_ms', title: 'Stall', numeric: true, by: 'training time blocked by the checkpoint; the upload continues in the background', cell: (one) => (one.stall_ms === null ? <Absent why="checkpoint failed" /> : inSeconds(one.stall_ms)), value: (one) => one.stall_ms },
  { name: 'upload_ms', title: 'Upload', numeric: true, by: 'from the copy in memory until the commit in the store', cell: (one) => (one.upload_ms === null ? <Absent why="checkpoint failed" /> : inSeconds(one.upload_ms)), value: (one) => one.upload_ms },
  { name: 'restored_by', title: 'Restored by', cell: (one) => one.restored_by.map((attempt) => `attempt ${attempt}`).join(', ') || <span className="quiet">not restored</span>, value: (one) => one.restored_by.join(' ') },
]

/** The newest durable step and the newest reported step. */
function Steps({ job }: { job: Job }) {
  if (job.last_checkpoint_step === null) return null
  const behind = job.step - job.last_checkpoint_step
  return (
    <p className="note">
      Durable step {count(job.last_checkpoint_step)}: a {ENDED_STATES.includes(job.state) ? 'retry' : 'resume'} starts from there. Reported step {count(job.step)}
      {behind > 0 ? `: ${many(behind, 'step')} would be recomputed.` : '.'}
    </p>
  )
}

export function Checkpoints({ job }: { job: Job }) {
  return (
    <Loaded
      query={useCheckpoints(job.id)}
      empty={({ checkpoints }) =>
        checkpoints.length === 0 ? <p>{ENDED_STATES.includes(job.state) ? 'Job finished without a checkpoint.' : <>No checkpoint yet. {job.saves ?? 'The job file sets the interval.'}</>}</p> : null
      }
    >
      {({ checkpoints, notes }) => (
        <>
          <Steps job={job} />
          {notes.map((note) => <p key={note} className="note">{note}</p>)}
          <Table name="checkpoints" caption="Checkpoints" columns={CHECKPOINTS} rows={checkpoints} keyOf={(one) => `${one.attempt}/${one.step}/${one.at}`} />
        </>
      )}
    </Loaded>
  )
}

export function Task({ job }: { job: Job }) {
  return (
    <Loaded query={useEvents(job.id)}>
      {([submission]) => (
        <>
          {job.notes.map((note) => <p key={note} className="note">{note}</p>)}
          <pre className="log" tabIndex={0} role="region" aria-label="Rendered task">{String(submission?.body.task ?? '')}</pre>
        </>
      )}
    </Loaded>
  )
}

/** Code, packages and configuration of the newest attempt. */
export function Manifest({ job }: { job: Job }) {
  const query = useManifest(job.id)
  if (query.error instanceof ResponseError && query.error.status === 404)
    return <div className="empty"><p>No manifest yet. A script reports it when it enters <code>run.steps()</code>, with the values of <code>run.describe(...)</code>.</p></div>
  return (
    <Loaded query={query}>
      {({ lock, ...rest }) => (
        <>
          <pre className="log" tabIndex={0} role="region" aria-label="Manifest">{JSON.stringify(rest, null, 2)}</pre>
          {Array.isArray(lock) && lock.length > 0 && (
            <details>
              <summary>{many(lock.length, 'package')} installed</summary>
              <pre className="log" tabIndex={0} role="region" aria-label="Packages">{lock.join('\n')}</pre>
            </details>
          )}
        </>
      )}
    </Loaded>
  )
}
