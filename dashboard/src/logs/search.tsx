// Search in the logs of a job. The service searches a part of the log per request.

import { useInfiniteQuery } from '@tanstack/react-query'
import { useEffect, type FormEvent } from 'react'
import { get, withQuery } from '../api/client'
import type { LogSource, MatchPage, Match } from '../api/types'
import { bytes, count, many } from '../format'
import { ErrorMessage } from '../ui/panel'

export interface LogSearch {
  q: string
  regex: boolean
  ignore_case: boolean
  /** Search all logs of the job instead of the current one. */
  everywhere: boolean
}

export function SearchForm({ terms, search }: { terms: LogSearch; search: (terms: LogSearch) => void }) {
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
    <form role="search" className="row" onSubmit={submit} key={JSON.stringify(terms)}>
      <input type="search" name="q" aria-label="Search the logs" placeholder="Search the logs" maxLength={200} defaultValue={terms.q} />
      <label><input type="checkbox" name="everywhere" defaultChecked={terms.everywhere} /> all logs</label>
      <label><input type="checkbox" name="ignore_case" defaultChecked={terms.ignore_case} /> ignore case</label>
      <label><input type="checkbox" name="regex" defaultChecked={terms.regex} /> regular expression</label>
      <button type="submit">Search</button>
    </form>
  )
}

/** Matches per request. */
const AT_ONCE = 100

interface SearchResultsProps {
  job: string
  log: LogSource
  terms: LogSearch
  show: (match: Match) => void
}

export function SearchResults({ job, log, terms, show }: SearchResultsProps) {
  const { q, regex, ignore_case, everywhere } = terms
  const where = everywhere ? { attempt: null, node: null, rank: null } : { attempt: log.attempt, node: log.node, rank: log.rank }
  const query = useInfiniteQuery({
    queryKey: ['search', job, terms, where],
    initialPageParam: null as string | null,
    queryFn: ({ pageParam, signal }) => {
      const words = { q, regex: String(regex), ignore_case: String(ignore_case), ...where, limit: AT_ONCE, cursor: pageParam }
      return get<MatchPage>(withQuery(`/v1/jobs/${encodeURIComponent(job)}/logs/search`, words), signal)
    },
    getNextPageParam: (page) => page.next,
    staleTime: Infinity,
  })
  const { data, error, hasNextPage, isFetching, fetchNextPage } = query
  // The log of a node has no rank, and the API cannot exclude the logs of its ranks.
  const matches = (data?.pages ?? []).flatMap((page) => page.matches).filter((match) => everywhere || match.rank === log.rank)
  const searched = (data?.pages ?? []).reduce((sum, page) => sum + page.searched_bytes, 0)
  const has_more = hasNextPage && matches.length === 0
  useEffect(() => {
    // A response without matches covers only a part of a long log.
    if (has_more && !isFetching && !error) void fetchNextPage()
  }, [has_more, isFetching, error, fetchNextPage])
  if (error && !data) return <ErrorMessage error={error} retry={() => void query.refetch()} />
  return (
    <div className="found" role="region" aria-label="Search results">
      <p className="note" role="status">
        {matches.length > 0
          ? `${hasNextPage ? 'The first ' : ''}${many(matches.length, 'line')} match “${q}”.`
          : isFetching || (has_more && !error)
            ? `Searching: ${bytes(searched)} so far.`
            : `No line matches “${q}”; ${bytes(searched)} searched${has_more ? ' so far' : ''}.`}
      </p>
      {error && <ErrorMessage error={error} retry={() => void fetchNextPage()} />}
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
          {isFetching ? 'Searching…' : 'Continue search'}
        </button>
      )}
    </div>
  )
}
