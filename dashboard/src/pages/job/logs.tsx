// The logs of a job, by attempt, node and rank, with search and follow.

import { useQueryClient } from '@tanstack/react-query'
import { useSearchParams } from 'react-router'
import { useLogs } from '../../api/queries'
import type { Job, LogSource } from '../../api/types'
import { SearchResults, SearchForm, type LogSearch } from '../../logs/search'
import { useLogOptions } from '../../logs/options'
import { LogView } from '../../logs/view'
import { WrappedLog } from '../../logs/wrapped'
import { ENDED_STATES } from '../../phases'
import { Loaded } from '../../ui/panel'

export function Logs({ job, live }: { job: Job; live: boolean }) {
  return (
    <Loaded query={useLogs(job.id, live)} empty={(logs) => (logs.length === 0 ? <p>{ENDED_STATES.includes(job.state) ? `No logs: ${job.attempt === 0 ? `the job never started${job.detail && ` (${job.detail})`}` : 'its nodes printed nothing'}.` : 'No logs yet: they appear with the first nodes.'}</p> : null)}>
      {(logs) => <Log job={job} logs={logs} live={live} />}
    </Loaded>
  )
}

const keyOf = ({ attempt, node, rank }: { attempt: number; node: number; rank: number | null }): string =>
  `${attempt}.${node}.${rank ?? ''}`

function Log({ job, logs, live }: { job: Job; logs: LogSource[]; live: boolean }) {
  const client = useQueryClient()
  const { wrap } = useLogOptions()
  const [params, setParams] = useSearchParams()
  const newest = logs.findLast((log) => log.rank === null && log.node === 0) ?? logs.at(-1)
  const log = logs.find((one) => keyOf(one) === params.get('log')) ?? newest
  if (!log) return null
  const put = (changes: Record<string, string | null>) =>
    setParams(
      (now) => {
        for (const [name, value] of Object.entries(changes))
          if (value === null || value === '') now.delete(name)
          else now.set(name, value)
        return now
      },
      { replace: true },
    )
  const has = (word: string) => (params.get('search') ?? '').split(',').includes(word)
  const terms: LogSearch = { q: params.get('find') ?? '', regex: has('regex'), ignore_case: has('nocase'), everywhere: has('all') }
  const search = (next: LogSearch) => {
    const { q, regex, ignore_case, everywhere } = next
    // A repeated search starts from the beginning, since the log grows.
    void client.resetQueries({ queryKey: ['search', job.id, next] })
    put({ find: q, search: [regex && 'regex', ignore_case && 'nocase', everywhere && 'all'].filter(Boolean).join(','), byte: null })
  }
  const byte = params.get('byte')
  const View = wrap ? WrappedLog : LogView
  const follows = live && log.attempt === job.attempt && params.get('follow') !== 'no'
  return (
    <>
      <div className="row spread">
        <Choice logs={logs} log={log} choose={(one) => put({ log: keyOf(one), byte: null })} />
        {live && (
          <label>
            <input type="checkbox" checked={params.get('follow') !== 'no'} onChange={(event) => put({ follow: event.target.checked ? null : 'no' })} /> Follow
          </label>
        )}
      </div>
      <SearchForm terms={terms} search={search} />
      {terms.q && <SearchResults job={job.id} log={log} terms={terms} show={(match) => put({ log: keyOf(match), byte: String(match.offset) })} />}
      <View key={keyOf(log)} job={job.id} log={log} follows={follows} at={byte === null ? null : Number(byte)} />
    </>
  )
}

/** Selects a log by attempt, node and rank, since a big job has thousands. */
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
    <div className="row" role="group" aria-label="Log source">
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
        Process
        <select value={log.rank ?? ''} onChange={(event) => pick(log.attempt, log.node, event.target.value === '' ? null : Number(event.target.value))}>
          {of_node.map((one) => (
            <option key={one.rank ?? ''} value={one.rank ?? ''}>
              {one.rank === null ? 'node' : `rank ${one.rank}`}
            </option>
          ))}
        </select>
      </label>
    </div>
  )
}
