// Loads the visible pages of a log and follows its size.

import { useEffect, useMemo, useRef, useState } from 'react'
import { request, withQuery } from '../api/client'
import type { LogSource } from '../api/types'
import { reader } from '../live/sse'
import { linesOf, spanOf, type Line, type Loaded } from './pages'

/** Pages kept in memory. A lower value reloads pages more often; a higher value uses more memory, about 200 kB per page. */
const MOST_PAGES = 60
/** Delay before a retry after a failed request or a broken stream. */
const RETRY_MS = 3_000

const path = (job: string, rest = '') => `/v1/jobs/${encodeURIComponent(job)}/logs${rest}`
const place = ({ attempt, node, rank }: LogSource) => ({ attempt, node, rank })

interface LoadedPage {
  lines: Line[]
  /** Size of the log at the time of loading. */
  size_bytes: number
}

/** Properties of both views of a log. */
export interface LogProps {
  job: string
  log: LogSource
  /** Whether new lines are shown as they arrive. */
  follows: boolean
  /** A byte of the line to show; null: the end. */
  at: number | null
}

export interface Pages {
  loaded: Loaded
  error: Error | null
  /** Load the pages that are missing or have grown. */
  want: (pages: number[]) => void
  /** Retry immediately after an error. */
  again: () => void
}

/** The lines of the requested pages, as they load. */
export function usePages(job: string, log: LogSource, size_bytes: number): Pages {
  const [known, setKnown] = useState<ReadonlyMap<number, LoadedPage>>(new Map())
  const [error, setError] = useState<Error | null>(null)
  /** Whether requests pause after a failure. */
  const [rests, setRests] = useState(false)
  const under_way = useRef(new Set<string>())
  const load = async (page: number) => {
    const { offset, limit } = spanOf(page, size_bytes)
    const answer = await request(withQuery(path(job, '/text'), { ...place(log), offset, limit }))
    const lines = linesOf(new Uint8Array(await answer.arrayBuffer()), page)
    setKnown((now) => remembered(now, page, { lines, size_bytes }))
    setError(null)
  }
  const fail = (why: Error) => {
    setError(why)
    setRests(true)
    window.setTimeout(() => setRests(false), RETRY_MS)
  }
  const want = (pages: number[]) => {
    for (const page of rests ? [] : pages.filter((page) => isStale(known.get(page), page, size_bytes))) {
      const name = `${page}:${size_bytes}`
      if (under_way.current.has(name)) continue
      under_way.current.add(name)
      load(page)
        .catch(fail)
        .finally(() => under_way.current.delete(name))
    }
  }
  const loaded = useMemo(() => new Map([...known].map(([page, { lines }]) => [page, lines] as const)), [known])
  return { loaded, error, want, again: () => setRests(false) }
}

/** Whether a page has grown since it was loaded. */
function isStale(known: LoadedPage | undefined, page: number, size_bytes: number): boolean {
  if (!known) return true
  const end = (size: number) => spanOf(page, size).offset + spanOf(page, size).limit
  return end(known.size_bytes) < end(size_bytes)
}

function remembered(now: ReadonlyMap<number, LoadedPage>, page: number, known: LoadedPage) {
  const next = new Map(now)
  next.delete(page)
  next.set(page, known)
  for (const oldest of next.keys()) {
    if (next.size <= MOST_PAGES) break
    next.delete(oldest)
  }
  return next
}

/** The size of a log: from its stream while it is followed, or from the list if that is larger. */
export function useSize(job: string, log: LogSource, follows: boolean): number {
  const [streamed, setStreamed] = useState(0)
  const from = useRef(log.size_bytes)
  from.current = Math.max(from.current, streamed, log.size_bytes)
  const { attempt, node, rank } = log
  useEffect(() => {
    if (!follows) return
    const end = new AbortController()
    const readStream = async () => {
      const answer = await request(withQuery(path(job, '/stream'), { attempt, node: rank === null ? node : null, rank }), {
        headers: { 'Last-Event-ID': `${attempt}:${from.current}`, Accept: 'text/event-stream' },
        signal: end.signal,
      })
      const take = reader()
      const pieces = answer.body?.pipeThrough(new TextDecoderStream()).getReader()
      for (;;) {
        const { done, value } = (await pieces?.read()) ?? { done: true, value: undefined }
        if (done) return false
        const messages = take(value ?? '')
        const newest = messages.findLast((message) => message.id !== null)?.id
        if (newest) setStreamed(Number(newest.split(':')[1]))
        if (messages.some((message) => message.kind === 'end')) return true
      }
    }
    const follow = async () => {
      while (!end.signal.aborted) {
        const is_over = await readStream().catch(() => false)
        if (is_over) return
        await new Promise((resolve) => window.setTimeout(resolve, RETRY_MS))
      }
    }
    void follow()
    return () => end.abort()
  }, [job, attempt, node, rank, follows])
  return Math.max(streamed, log.size_bytes)
}
