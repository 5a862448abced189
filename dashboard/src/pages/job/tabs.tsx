// What else there is of a job: its story, facts, checkpoints, logs and the task as it was rendered.

import { useEffect, useRef } from 'react'
import { useSearchParams } from 'react-router'
import { useCheckpoints, useFacts, useLogEnd, useLogs, useStory } from '../../api/queries'
import type { Checkpoint, Fact, Job, LogSource } from '../../api/types'
import { bytes, count, duration } from '../../format'
import { Loaded } from '../../ui/panel'
import { Absent } from '../../ui/figure'
import { Table, type Column } from '../../ui/table'
import { At } from '../../ui/time'

export function Story({ job, live }: { job: Job; live: boolean }) {
  return (
    <Loaded query={useStory(job.id, live)}>
      {(sentences) => (
        <ol className="story">
          {sentences.map((one, at) => (
            <li key={at}>
              {one.at ? <At at={one.at} short /> : <span className="quiet">now</span>}
              <span>{one.text}</span>
            </li>
          ))}
        </ol>
      )}
    </Loaded>
  )
}

const FACTS: Column<Fact>[] = [
  { name: 'seq', title: 'No.', numeric: true, cell: (fact) => fact.seq, value: (fact) => fact.seq },
  { name: 'at', title: 'When', cell: (fact) => <At at={fact.at} />, value: (fact) => fact.at },
  { name: 'source', title: 'Told by', cell: (fact) => fact.source, value: (fact) => fact.source },
  { name: 'kind', title: 'What', cell: (fact) => <strong>{fact.kind}</strong>, value: (fact) => fact.kind },
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
          <Table name="events" caption="Events" searchable columns={FACTS} rows={facts} keyOf={(fact) => String(fact.seq)} limit={500} />
          <p>
            <a href={`/v1/jobs/${job.id}/events`}>All of it as JSON</a>
          </p>
        </>
      )}
    </Loaded>
  )
}

const MARKS: Record<string, string> = { complete: '✓', failed: '✕', damaged: '✕', abandoned: '◫', removed: '○' }

const CHECKPOINTS: Column<Checkpoint>[] = [
  { name: 'step', title: 'Step', numeric: true, cell: (one) => count(one.step), value: (one) => one.step },
  { name: 'state', title: 'State', cell: (one) => <span title={one.detail}>{`${MARKS[one.state] ?? '·'} ${one.state}`}</span>, value: (one) => one.state },
  { name: 'attempt', title: 'Attempt', numeric: true, cell: (one) => one.attempt, value: (one) => one.attempt },
  { name: 'at', title: 'Durable', cell: (one) => <At at={one.at} />, value: (one) => one.at },
  { name: 'size_bytes', title: 'Size', numeric: true, cell: (one) => (one.size_bytes === null ? <Absent why="it failed" /> : bytes(one.size_bytes)), value: (one) => one.size_bytes },
  { name: 'stall_ms', title: 'Stood still', numeric: true, cell: (one) => (one.stall_ms === null ? <Absent why="it failed" /> : duration(one.stall_ms)), value: (one) => one.stall_ms },
  { name: 'upload_ms', title: 'Upload', numeric: true, cell: (one) => (one.upload_ms === null ? <Absent why="it failed" /> : duration(one.upload_ms)), value: (one) => one.upload_ms },
  { name: 'restored_by', title: 'Restored by', cell: (one) => one.restored_by.map((attempt) => `attempt ${attempt}`).join(', ') || <span className="quiet">none</span>, value: (one) => one.restored_by.join(' ') },
]

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
          {notes.map((note) => <p key={note} className="note">{note}</p>)}
          <Table name="checkpoints" caption="Checkpoints" columns={CHECKPOINTS} rows={checkpoints} keyOf={(one) => `${one.attempt}/${one.step}/${one.at}`} />
        </>
      )}
    </Loaded>
  )
}

const nameOf = (log: LogSource): string =>
  `attempt ${log.attempt} · node ${log.node}${log.rank === null ? '' : ` · rank ${log.rank}`}`
const keyOf = (log: LogSource): string => `${log.attempt}.${log.node}.${log.rank ?? ''}`

export function Logs({ job, live }: { job: Job; live: boolean }) {
  return (
    <Loaded query={useLogs(job.id, live)} empty={(logs) => (logs.length === 0 ? <p>No log yet: the first comes with the first nodes.</p> : null)}>
      {(logs) => <Log job={job} logs={logs} />}
    </Loaded>
  )
}

function Log({ job, logs }: { job: Job; logs: LogSource[] }) {
  const [words, setWords] = useSearchParams()
  const newest = logs.findLast((log) => log.rank === null && log.node === 0) ?? logs.at(-1) ?? null
  const log = logs.find((one) => keyOf(one) === words.get('log')) ?? newest
  const query = useLogEnd(job.id, log)
  return (
    <>
      <label className="row">
        Which log
        <select value={log ? keyOf(log) : ''} onChange={(event) => setWords((now) => (now.set('log', event.target.value), now), { replace: true })}>
          {logs.map((one) => (
            <option key={keyOf(one)} value={keyOf(one)}>
              {`${nameOf(one)} (${bytes(one.size_bytes)})`}
            </option>
          ))}
        </select>
      </label>
      <Loaded query={query} empty={({ text }) => (text === '' ? <p>Nothing was printed yet.</p> : null)}>
        {({ text, begins }) => (
          <>
            {begins > 0 && <p className="note">The last {bytes(text.length)}; <code>holdfast logs {job.id}</code> has all of it.</p>}
            <LogText text={text} />
          </>
        )}
      </Loaded>
    </>
  )
}

/** How near to its end a reader is who wants to see what comes. */
const NEAR_PX = 40

function LogText({ text }: { text: string }) {
  const box = useRef<HTMLPreElement>(null)
  const follows = useRef(true)
  useEffect(() => {
    if (box.current && follows.current) box.current.scrollTop = box.current.scrollHeight
  }, [text])
  return (
    <pre
      ref={box}
      className="log"
      tabIndex={0}
      role="region"
      aria-label="Log"
      onScroll={({ currentTarget: it }) => (follows.current = it.scrollHeight - it.scrollTop - it.clientHeight < NEAR_PX)}
    >
      {text}
    </pre>
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
