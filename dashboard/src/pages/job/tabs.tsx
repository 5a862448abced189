// What else there is of a job: its story, facts, checkpoints, the task as it was rendered, and what it came from.

import { Refused } from '../../api/client'
import { useCheckpoints, useFacts, useManifest, useStory } from '../../api/queries'
import type { Checkpoint, Fact, Job, Sentence } from '../../api/types'
import { bytes, count, dayOf, duration, many, type Clockwork } from '../../format'
import { usePreferences } from '../../preferences'
import { Loaded } from '../../ui/panel'
import { Absent } from '../../ui/figure'
import { Table, type Column } from '../../ui/table'
import { At } from '../../ui/time'
import { markOf, MARKS, OVER } from '../../vocabulary'
import { Troubles } from './troubles'

/** The day of each sentence that is the first of one; nothing where all are of the same. */
function daysOf(sentences: Sentence[], clock: Clockwork): (string | null)[] {
  const days = sentences.map((one) => (one.at ? dayOf(Date.parse(one.at), clock) : null))
  const known = days.filter((day) => day !== null)
  if (new Set(known).size < 2) return days.map(() => null)
  return days.map((day, at) => (day !== days.slice(0, at).findLast((before) => before !== null) ? day : null))
}

export const Story = ({ job, live }: { job: Job; live: boolean }) => (
  <>
    <Troubles job={job} live={live} />
    <Loaded query={useStory(job.id, live)}>{(sentences) => <Sentences sentences={sentences} />}</Loaded>
  </>
)

function Sentences({ sentences }: { sentences: Sentence[] }) {
  const { clock } = usePreferences()
  const days = daysOf(sentences, clock)
  return (
    <ol className="story">
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

/** The kind of an event, and the words of its mark in charts. */
function What({ fact }: { fact: Fact }) {
  const mark = markOf(fact.kind, fact.body)
  return <><strong>{fact.kind}</strong>{mark && <small> {MARKS[mark].one}</small>}</>
}

const FACTS: Column<Fact>[] = [
  { name: 'seq', title: 'No.', numeric: true, cell: (fact) => fact.seq, value: (fact) => fact.seq },
  { name: 'at', title: 'When', cell: (fact) => <At at={fact.at} />, value: (fact) => fact.at },
  { name: 'source', title: 'Told by', cell: (fact) => fact.source, value: (fact) => fact.source },
  { name: 'kind', title: 'What', cell: (fact) => <What fact={fact} />, value: (fact) => fact.kind },
  { name: 'body', title: 'Facts', cell: (fact) => <code className="body">{brief(fact)}</code>, value: (fact) => JSON.stringify(fact.body) },
]

function brief(fact: Fact): string {
  return Object.entries(fact.body)
    .filter(([name, value]) => !['at', 'source', 'spec', 'task'].includes(name) && value !== null && value !== '' && typeof value !== 'object')
    .map(([name, value]) => `${name}=${String(value)}`)
    .join('  ')
}

export function Facts({ job }: { job: Job }) {
  return (
    <Loaded query={useFacts(job.id)}>
      {(facts) => (
        <>
          <Table name="events" caption="Events" searchable columns={FACTS} rows={facts} keyOf={(fact) => String(fact.seq)} />
          <p>
            <a href={`/v1/jobs/${job.id}/events`}>All of it as JSON</a>
          </p>
        </>
      )}
    </Loaded>
  )
}

const STATE_MARKS: Record<string, string> = { complete: '✓', failed: '✕', damaged: '✕', abandoned: '◫', removed: '○' }

const CHECKPOINTS: Column<Checkpoint>[] = [
  { name: 'step', title: 'Saved step', numeric: true, by: 'saved step: the step whose state it holds; durable once the checkpoint is complete', cell: (one) => count(one.step), value: (one) => one.step },
  { name: 'state', title: 'State', cell: (one) => <span title={one.detail}>{one.superseded ? `○ superseded, ${one.detail}` : `${STATE_MARKS[one.state] ?? '·'} ${one.state}`}</span>, value: (one) => (one.superseded ? 'superseded' : one.state) },
  { name: 'attempt', title: 'Attempt', numeric: true, cell: (one) => one.attempt, value: (one) => one.attempt },
  { name: 'at', title: 'Durable', cell: (one) => <At at={one.at} />, value: (one) => one.at },
  { name: 'size_bytes', title: 'Size', numeric: true, cell: (one) => (one.size_bytes === null ? <Absent why="it failed" /> : bytes(one.size_bytes)), value: (one) => one.size_bytes },
  { name: 'stall_ms', title: 'Stood still', numeric: true, by: 'how long training waited for it, before it went on beside the upload', cell: (one) => (one.stall_ms === null ? <Absent why="it failed" /> : duration(one.stall_ms)), value: (one) => one.stall_ms },
  { name: 'upload_ms', title: 'Upload', numeric: true, by: 'from the copy in memory until all of it was in the store', cell: (one) => (one.upload_ms === null ? <Absent why="it failed" /> : duration(one.upload_ms)), value: (one) => one.upload_ms },
  { name: 'restored_by', title: 'Restored by', cell: (one) => one.restored_by.map((attempt) => `attempt ${attempt}`).join(', ') || <span className="quiet">none</span>, value: (one) => one.restored_by.join(' ') },
]

/** How far the job is, and how far it could be resumed from. */
function Steps({ job }: { job: Job }) {
  if (job.last_checkpoint_step === null) return null
  const behind = job.step - job.last_checkpoint_step
  return (
    <p className="note">
      Durable step {count(job.last_checkpoint_step)}: a {OVER.includes(job.state) ? 'retry' : 'resume'} starts from there. Reported step {count(job.step)}
      {behind > 0 ? `: ${many(behind, 'step')} would be repeated.` : '.'}
    </p>
  )
}

export function Checkpoints({ job }: { job: Job }) {
  return (
    <Loaded
      query={useCheckpoints(job.id)}
      empty={({ checkpoints }) =>
        checkpoints.length === 0 ? <p>No checkpoint yet. {job.saves ?? 'The job file says how often one is taken.'}</p> : null
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
    <Loaded query={useFacts(job.id)}>
      {([submitted]) => (
        <>
          {job.notes.map((note) => <p key={note} className="note">{note}</p>)}
          <pre className="log" tabIndex={0} role="region" aria-label="Rendered task">{String(submitted?.body.task ?? '')}</pre>
        </>
      )}
    </Loaded>
  )
}

/** What the newest attempt came from. */
export function Manifest({ job }: { job: Job }) {
  const query = useManifest(job.id)
  if (query.error instanceof Refused && query.error.status === 404)
    return <div className="empty"><p>None is told yet. A script does where it enters <code>run.steps()</code>, with what <code>run.describe(...)</code> was given.</p></div>
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
