// One event stream for the whole page. An event only marks queries as stale; all displayed data is fetched from the
// service, so that the browser holds no second copy of the state.

import { useQueryClient, type QueryClient } from '@tanstack/react-query'
import { createContext, useContext, useEffect, useState, type ReactNode } from 'react'
import { isDear, isOfJob, isOfJobs } from '../api/queries'
import { ResponseError } from '../api/client'
import { MARKS, markOf } from '../phases'
import { QueryInvalidator } from './query-invalidation'
import { reader, type Message } from './sse'

/** Shortest interval between refetches of one job and of job lists, and of expensive queries. Events may arrive by the dozen a second:
 *  with a lower value, a single page comes close to the rate limit of the service. */
const PACE_MS = 1_000
const DEAR_MS = 5_000
/** Delay before a reconnect, at first and at most. */
const RETRY_MS = 1_000
const LONGEST_RETRY_MS = 10_000
/** Longer than the service's heartbeat of 15 s: a stream that is silent for this long is broken. */
const SILENCE_MS = 40_000
/** Shortest interval between announcements to screen readers. */
const ANNOUNCE_MS = 10_000

/** How long a termination notice is shown on every page. A lower value is easily missed; a higher value outlasts the nodes. */
const TOAST_MS = 30_000

export type Liveness =
  | { is: 'connecting' }
  | { is: 'live' }
  | { is: 'stale'; since: number; why: string }

interface State {
  liveness: Liveness
  announcement: string
  /** The job with the newest termination notice, for as long as the toast is shown. */
  noticed: string | null
}

const Context = createContext<State>({ liveness: { is: 'connecting' }, announcement: '', noticed: null })

export const useLive = (): State => useContext(Context)

export function LiveProvider({ children }: { children: ReactNode }) {
  const client = useQueryClient()
  const [state, setState] = useState<State>({ liveness: { is: 'connecting' }, announcement: '', noticed: null })

  useEffect(() => {
    const follower = new Follower(
      client,
      (liveness) => setState((now) => ({ ...now, liveness })),
      (announcement) => setState((now) => ({ ...now, announcement })),
      (noticed) => setState((now) => ({ ...now, noticed })),
    )
    const look = () => (document.hidden ? follower.pause() : follower.go())
    look()
    document.addEventListener('visibilitychange', look)
    return () => {
      document.removeEventListener('visibilitychange', look)
      follower.pause()
    }
  }, [client])

  return <Context.Provider value={state}>{children}</Context.Provider>
}

class Follower {
  private lastId = 'now'
  private stream: AbortController | null = null
  private failures = 0
  private lostAt = 0
  private readonly invalidators: QueryInvalidator[]
  private counts: Record<string, number> = {}
  private announcing: number | undefined
  private noticeTimer: number | undefined

  constructor(
    private readonly client: QueryClient,
    private readonly show: (liveness: Liveness) => void,
    private readonly setAnnouncement: (words: string) => void,
    private readonly setNoticed: (job: string | null) => void,
  ) {
    this.invalidators = [new QueryInvalidator(client, PACE_MS, isOfJob), new QueryInvalidator(client, DEAR_MS, isDear)]
  }

  go(): void {
    if (this.stream) return
    this.stream = new AbortController()
    void this.follow(this.stream.signal)
  }

  /** Close the stream while the page is hidden. It resumes at the last event. */
  pause(): void {
    this.stream?.abort()
    this.stream = null
  }

  private async follow(end: AbortSignal): Promise<void> {
    while (!end.aborted) {
      const why = await this.read(end)
      if (end.aborted) return
      this.failures += 1
      if (this.failures === 1) this.lostAt = Date.now()
      else this.show({ is: 'stale', since: this.lostAt, why })
      // Polls every endpoint that still responds.
      if (this.failures > 2) void this.client.invalidateQueries({}, { cancelRefetch: false })
      await sleep(Math.min(LONGEST_RETRY_MS, RETRY_MS * 2 ** (this.failures - 1)), end)
    }
  }

  /** The reason for which the stream ended. */
  private async read(end: AbortSignal): Promise<string> {
    const silence = new AbortController()
    let watch = window.setTimeout(() => silence.abort(), SILENCE_MS)
    try {
      const answer = await fetch('/v1/stream', {
        headers: { 'Last-Event-ID': this.lastId, Accept: 'text/event-stream' },
        signal: AbortSignal.any([end, silence.signal]),
      })
      if (answer.status === 401) void this.client.invalidateQueries({ queryKey: ['who'] })
      if (!answer.ok || !answer.body) throw new ResponseError(answer.status, '', `HTTP ${answer.status}`, null, null)
      // Events that were missed are included in the refetched data.
      if (this.failures || this.lastId === 'now') void this.client.invalidateQueries({ predicate: ({ queryKey }) => isOfJobs(queryKey) })
      this.failures = 0
      this.show({ is: 'live' })
      const take = reader()
      const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader()
      for (;;) {
        const { done, value } = await pieces.read()
        if (done) return 'the service closed the stream'
        window.clearTimeout(watch)
        watch = window.setTimeout(() => silence.abort(), SILENCE_MS)
        take(value).forEach((message) => this.receive(message))
      }
    } catch (error) {
      return error instanceof ResponseError ? error.message : 'service unreachable'
    } finally {
      window.clearTimeout(watch)
    }
  }

  private toast(job: string): void {
    this.setNoticed(job)
    window.clearTimeout(this.noticeTimer)
    this.noticeTimer = window.setTimeout(() => this.setNoticed(null), TOAST_MS)
  }

  private receive(message: Message): void {
    if (message.id === null) return
    this.lastId = message.id
    const event = JSON.parse(message.data) as { job_id: string; kind: string; body: Record<string, unknown> }
    for (const invalidator of this.invalidators) invalidator.add(event.job_id)
    if (event.kind === 'PreemptionNoticed') this.toast(event.job_id)
    const kind = markOf(event.kind, event.body) ?? event.kind
    this.counts[kind] = (this.counts[kind] ?? 0) + 1
    this.announcing ??= window.setTimeout(() => this.announce(), ANNOUNCE_MS)
  }

  private announce(): void {
    this.announcing = undefined
    this.setAnnouncement(summary(this.counts))
    this.counts = {}
  }
}

const ANNOUNCED: Record<string, { one: string; more: string }> = {
  notice: MARKS.notice,
  preemption: MARKS.preemption,
  loss: MARKS.loss,
  failure: MARKS.failure,
  move: MARKS.move,
  TrainingStarted: { one: 'job started training', more: 'jobs started training' },
  resume: MARKS.resume,
  RanksRestarted: { one: 'restart of ranks', more: 'restarts of ranks' },
  NodeReplaced: { one: 'node replaced', more: 'nodes replaced' },
  RanksReplaced: { one: 'replacement of ranks', more: 'replacements of ranks' },
  NodesKept: { one: 'failure whose nodes are kept', more: 'failures whose nodes are kept' },
  GpuUnhealthy: { one: 'unhealthy GPU', more: 'unhealthy GPUs' },
  Finished: { one: 'job ended', more: 'jobs ended' },
  GuardTripped: { one: 'limit reached', more: 'limits reached' },
}

function summary(counts: Record<string, number>): string {
  return Object.entries(ANNOUNCED)
    .filter(([kind]) => counts[kind])
    .map(([kind, { one, more }]) => `${counts[kind]} ${counts[kind] === 1 ? one : more}`)
    .join(', ')
}

function sleep(ms: number, end: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = window.setTimeout(resolve, ms)
    end.addEventListener('abort', () => {
      window.clearTimeout(timer)
      resolve()
    })
  })
}
