// The pages of one log that are looked at, and how long it is by now.

import { useEffect, useMemo, useRef, useState } from 'react'
import { ask, asked } from '../api/client'
import type { LogSource } from '../api/types'
import { reader } from '../live/sse'
import { linesOf, spanOf, type Line, type Loaded } from './pages'

/** Pages that are kept. Fewer: more is asked for again; more: memory, some 200 kB for each. */
const MOST_PAGES = 60
/** From a request that failed, or a stream that broke, to the next try. */
const RETRY_MS = 3_000

const path = (job: string, rest = '') => `/v1/jobs/${encodeURIComponent(job)}/logs${rest}`
const place = ({ attempt, node, rank }: LogSource) => ({ attempt, node, rank })

interface Known {
  lines: Line[]
  /** How long the log was. */
  size_bytes: number
}

export interface Pages {
  loaded: Loaded
  error: Error | null
  /** Ask for those of some pages that are not there as they are now. */
  want: (pages: number[]) => void
  /** Try again what failed, at once. */
  again: () => void
}

/** The lines of the pages that were wanted, as they come. */
export function usePages(job: string, log: LogSource, size_bytes: number): Pages {
  const [known, setKnown] = useState<ReadonlyMap<number, Known>>(new Map())
  const [error, setError] = useState<Error | null>(null)
  /** Whether nothing is asked for now, as it has just failed. */
  const [rests, setRests] = useState(false)
  const under_way = useRef(new Set<string>())
  const load = async (page: number) => {
    const { offset, limit } = spanOf(page, size_bytes)
    const answer = await ask(asked(path(job, '/text'), { ...place(log), offset, limit }))
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

/** Whether there is more of a page by now. */
function isStale(known: Known | undefined, page: number, size_bytes: number): boolean {
  if (!known) return true
  const end = (size: number) => spanOf(page, size).offset + spanOf(page, size).limit
  return end(known.size_bytes) < end(size_bytes)
}

function remembered(now: ReadonlyMap<number, Known>, page: number, known: Known) {
  const next = new Map(now)
  next.delete(page)
  next.set(page, known)
  for (const oldest of next.keys()) {
    if (next.size <= MOST_PAGES) break
    next.delete(oldest)
  }
  return next
}

/** How long a log is, as its stream tells it while it is followed; what the list said, while that is more. */
export function useSize(job: string, log: LogSource, follows: boolean): number {
  const [told, setTold] = useState(0)
  const from = useRef(log.size_bytes)
  from.current = Math.max(from.current, told, log.size_bytes)
  const { attempt, node, rank } = log
  useEffect(() => {
    if (!follows) return
    const end = new AbortController()
    const listen = async () => {
      const answer = await ask(asked(path(job, '/stream'), { attempt, node: rank === null ? node : null, rank }), {
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
        if (newest) setTold(Number(newest.split(':')[1]))
        if (messages.some((message) => message.kind === 'end')) return true
      }
    }
    const follow = async () => {
      while (!end.signal.aborted) {
        const is_over = await listen().catch(() => false)
        if (is_over) return
        await new Promise((resolve) => window.setTimeout(resolve, RETRY_MS))
      }
    }
    void follow()
    return () => end.abort()
  }, [job, attempt, node, rank, follows])
  return Math.max(told, log.size_bytes)
}
