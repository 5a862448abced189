// Words in the logs of a job: found by the service, a stretch at a time, and each a way to its line.

import { useInfiniteQuery } from '@tanstack/react-query'
import { useEffect, type FormEvent } from 'react'
import { asked, get } from '../api/client'
import type { LogSource, MatchPage, Match } from '../api/types'
import { bytes, count, many } from '../format'
import { Trouble } from '../ui/panel'

export interface Sought {
  q: string
  regex: boolean
  ignore_case: boolean
  /** In all logs of the job, and not in the one that is shown alone. */
  everywhere: boolean
}

export function SearchForm({ sought, search }: { sought: Sought; search: (sought: Sought) => void }) {
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault()
    const form = new FormData(event.currentTarget)
    search({
      q: String(form.get('q') ?? ''),
      regex: form.has('regex'),
      ignore_case: form.has('ignore_case'),
      everywhere: form.has('everywhere'),
    })
  }
  return (
    <form role="search" className="row" onSubmit={submit} key={JSON.stringify(sought)}>
      <input type="search" name="q" aria-label="Search the logs" placeholder="Search the logs" maxLength={200} defaultValue={sought.q} />
      <label><input type="checkbox" name="everywhere" defaultChecked={sought.everywhere} /> in all of them</label>
      <label><input type="checkbox" name="ignore_case" defaultChecked={sought.ignore_case} /> ignore case</label>
      <label><input type="checkbox" name="regex" defaultChecked={sought.regex} /> a pattern</label>
      <button type="submit">Search</button>
    </form>
  )
}

/** At once; the rest is asked for. */
const AT_ONCE = 100

interface FoundProps {
  job: string
  log: LogSource
  sought: Sought
  show: (match: Match) => void
}

export function Found({ job, log, sought, show }: FoundProps) {
  const { q, regex, ignore_case, everywhere } = sought
  const where = everywhere ? { attempt: null, node: null, rank: null } : { attempt: log.attempt, node: log.node, rank: log.rank }
  const query = useInfiniteQuery({
    queryKey: ['search', job, sought, where],
    initialPageParam: null as string | null,
    queryFn: ({ pageParam, signal }) => {
      const words = { q, regex: String(regex), ignore_case: String(ignore_case), ...where, limit: AT_ONCE, cursor: pageParam }
      return get<MatchPage>(asked(`/v1/jobs/${encodeURIComponent(job)}/logs/search`, words), signal)
    },
    getNextPageParam: (page) => page.next,
    staleTime: Infinity,
  })
  const { data, error, hasNextPage, isFetching, fetchNextPage } = query
  // What a node itself printed has no rank, and there is no word by which the service would leave its ranks out.
  const matches = (data?.pages ?? []).flatMap((page) => page.matches).filter((match) => everywhere || match.rank === log.rank)
  const searched = (data?.pages ?? []).reduce((sum, page) => sum + page.searched_bytes, 0)
  const goes_on = hasNextPage && matches.length === 0
  useEffect(() => {
    // An answer without matches is but a stretch of a long log.
    if (goes_on && !isFetching && !error) void fetchNextPage()
  }, [goes_on, isFetching, error, fetchNextPage])
  if (error && !data) return <Trouble error={error} retry={() => void query.refetch()} />
  return (
    <div className="found" role="region" aria-label="Found in the logs">
      <p className="note" role="status">
        {matches.length > 0
          ? `${hasNextPage ? 'The first ' : ''}${many(matches.length, 'line')} with “${q}”.`
          : isFetching || (goes_on && !error)
            ? `Searching; ${bytes(searched)} so far.`
            : `No line has “${q}” in it; ${bytes(searched)} were searched${goes_on ? ' so far' : ''}.`}
      </p>
      {error && <Trouble error={error} retry={() => void fetchNextPage()} />}
      <ul>
        {matches.map((match) => (
          <li key={`${match.attempt}.${match.node}.${match.rank}.${match.offset}`}>
            <button type="button" className="link" onClick={() => show(match)}>
              {everywhere && `attempt ${match.attempt} · ${match.rank === null ? `node ${match.node}` : `rank ${match.rank}`} · `}line {count(match.line)}
            </button>
            <code>
              {match.text.slice(0, match.start)}
              <mark>{match.text.slice(match.start, match.end)}</mark>
              {match.text.slice(match.end)}
            </code>
          </li>
        ))}
      </ul>
      {hasNextPage && matches.length > 0 && (
        <button type="button" disabled={isFetching} onClick={() => void fetchNextPage()}>
          {isFetching ? 'Searching…' : 'Search on'}
        </button>
      )}
    </div>
  )
}
