// What a job printed: by attempt, node and rank; searched, and followed.

import { useQueryClient } from '@tanstack/react-query'
import { useSearchParams } from 'react-router'
import { useLogs } from '../../api/queries'
import type { Job, LogSource } from '../../api/types'
import { Found, SearchForm, type Sought } from '../../logs/search'
import { LogView } from '../../logs/view'
import { Loaded } from '../../ui/panel'

export function Logs({ job, live }: { job: Job; live: boolean }) {
  return (
    <Loaded query={useLogs(job.id, live)} empty={(logs) => (logs.length === 0 ? <p>No log yet: the first comes with the first nodes.</p> : null)}>
      {(logs) => <Log job={job} logs={logs} live={live} />}
    </Loaded>
  )
}

const keyOf = ({ attempt, node, rank }: { attempt: number; node: number; rank: number | null }): string =>
  `${attempt}.${node}.${rank ?? ''}`

function Log({ job, logs, live }: { job: Job; logs: LogSource[]; live: boolean }) {
  const client = useQueryClient()
  const [words, setWords] = useSearchParams()
  const newest = logs.findLast((log) => log.rank === null && log.node === 0) ?? logs.at(-1)
  const log = logs.find((one) => keyOf(one) === words.get('log')) ?? newest
  if (!log) return null
  const put = (changes: Record<string, string | null>) =>
    setWords(
      (now) => {
        for (const [name, value] of Object.entries(changes))
          if (value === null || value === '') now.delete(name)
          else now.set(name, value)
        return now
      },
      { replace: true },
    )
  const has = (word: string) => (words.get('search') ?? '').split(',').includes(word)
  const sought: Sought = { q: words.get('find') ?? '', regex: has('regex'), ignore_case: has('nocase'), everywhere: has('all') }
  const search = (next: Sought) => {
    const { q, regex, ignore_case, everywhere } = next
    // The same words again are looked for anew: a log grows.
    void client.resetQueries({ queryKey: ['search', job.id, next] })
    put({ find: q, search: [regex && 'regex', ignore_case && 'nocase', everywhere && 'all'].filter(Boolean).join(','), byte: null })
  }
  const byte = words.get('byte')
  const follows = live && log.attempt === job.attempt && words.get('follow') !== 'no'
  return (
    <>
      <div className="row spread">
        <Choice logs={logs} log={log} choose={(one) => put({ log: keyOf(one), byte: null })} />
        {live && (
          <label>
            <input type="checkbox" checked={words.get('follow') !== 'no'} onChange={(event) => put({ follow: event.target.checked ? null : 'no' })} /> Follow
          </label>
        )}
      </div>
      <SearchForm sought={sought} search={search} />
      {sought.q && <Found job={job.id} log={log} sought={sought} show={(match) => put({ log: keyOf(match), byte: String(match.offset) })} />}
      <LogView key={keyOf(log)} job={job.id} log={log} follows={follows} at={byte === null ? null : Number(byte)} />
    </>
  )
}

/** Which log, by one word after the other: a big job has thousands. */
function Choice({ logs, log, choose }: { logs: LogSource[]; log: LogSource; choose: (log: LogSource) => void }) {
  const of_attempt = logs.filter((one) => one.attempt === log.attempt)
  const of_node = of_attempt.filter((one) => one.node === log.node)
  const like = (them: LogSource[], attempt: number, node: number, rank: number | null) =>
    them.find((one) => one.attempt === attempt && one.node === node && one.rank === rank) ??
    them.find((one) => one.attempt === attempt && one.node === node) ??
    them.find((one) => one.attempt === attempt)
  const pick = (attempt: number, node: number, rank: number | null) => {
    const found = like(logs, attempt, node, rank)
    if (found) choose(found)
  }
  const distinct = (numbers: number[]) => [...new Set(numbers)]
  return (
    <div className="row" role="group" aria-label="Which log">
      <label className="row">
        Attempt
        <select value={log.attempt} onChange={(event) => pick(Number(event.target.value), log.node, log.rank)}>
          {distinct(logs.map((one) => one.attempt)).map((attempt) => <option key={attempt}>{attempt}</option>)}
        </select>
      </label>
      <label className="row">
        Node
        <select value={log.node} onChange={(event) => pick(log.attempt, Number(event.target.value), log.rank)}>
          {distinct(of_attempt.map((one) => one.node)).map((node) => <option key={node}>{node}</option>)}
        </select>
      </label>
      <label className="row">
        Printed by
        <select value={log.rank ?? ''} onChange={(event) => pick(log.attempt, log.node, event.target.value === '' ? null : Number(event.target.value))}>
          {of_node.map((one) => (
            <option key={one.rank ?? ''} value={one.rank ?? ''}>
              {one.rank === null ? 'the node itself' : `rank ${one.rank}`}
            </option>
          ))}
        </select>
      </label>
    </div>
  )
}
