// One stream of facts for the whole page. A fact only says which answers are stale; what is shown is always asked of
// the service, so that there is no second truth in the browser.

import { useQueryClient, type QueryClient } from '@tanstack/react-query'
import { createContext, useContext, useEffect, useState, type ReactNode } from 'react'
import { isDear, isOfJob, isOfJobs } from '../api/queries'
import { Refused } from '../api/client'
import { MARKS, markOf } from '../vocabulary'
import { Beat } from './beat'
import { reader, type Message } from './sse'

/** How often at most the answers about a job and lists of jobs are asked for anew, and how often those that are dear. Facts
 *  may come by the dozen a second: smaller, and a page of its own comes near what the service takes in a minute. */
const PACE_MS = 1_000
const DEAR_MS = 5_000
/** From one try to the next, at first and at most. */
const RETRY_MS = 1_000
const LONGEST_RETRY_MS = 10_000
/** Longer than the service's own heartbeat of 15 s: silence for so long is a broken line. */
const SILENCE_MS = 40_000
/** People who listen are told how much happened at most so often. */
const SPEAK_MS = 10_000

/** How long a termination notice is shown on every page. A lower value is easily missed; a higher value outlasts the nodes. */
const TOAST_MS = 30_000

export type Liveness =
  | { is: 'connecting' }
  | { is: 'live' }
  | { is: 'stale'; since: number; why: string }

interface State {
  liveness: Liveness
  spoken: string
  /** The job whose nodes are about to be taken, if a notice came a moment ago. */
  noticed: string | null
}

const Context = createContext<State>({ liveness: { is: 'connecting' }, spoken: '', noticed: null })

export const useLive = (): State => useContext(Context)

export function LiveProvider({ children }: { children: ReactNode }) {
  const client = useQueryClient()
  const [state, setState] = useState<State>({ liveness: { is: 'connecting' }, spoken: '', noticed: null })

  useEffect(() => {
    const follower = new Follower(
      client,
      (liveness) => setState((now) => ({ ...now, liveness })),
      (spoken) => setState((now) => ({ ...now, spoken })),
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
  private place = 'now'
  private line: AbortController | null = null
  private failures = 0
  private lostAt = 0
  private readonly beats: Beat[]
  private heard: Record<string, number> = {}
  private speaking: number | undefined
  private warning: number | undefined

  constructor(
    private readonly client: QueryClient,
    private readonly show: (liveness: Liveness) => void,
    private readonly speak: (words: string) => void,
    private readonly warn: (job: string | null) => void,
  ) {
    this.beats = [new Beat(client, PACE_MS, isOfJob), new Beat(client, DEAR_MS, isDear)]
  }

  go(): void {
    if (this.line) return
    this.line = new AbortController()
    void this.follow(this.line.signal)
  }

  /** Nobody looks: the line is given back, and taken up where it was. */
  pause(): void {
    this.line?.abort()
    this.line = null
  }

  private async follow(end: AbortSignal): Promise<void> {
    while (!end.aborted) {
      const why = await this.listen(end)
      if (end.aborted) return
      this.failures += 1
      if (this.failures === 1) this.lostAt = Date.now()
      else this.show({ is: 'stale', since: this.lostAt, why })
      // Whatever still answers is shown as new as it is.
      if (this.failures > 2) void this.client.invalidateQueries({}, { cancelRefetch: false })
      await sleep(Math.min(LONGEST_RETRY_MS, RETRY_MS * 2 ** (this.failures - 1)), end)
    }
  }

  /** Why the line broke, in words. */
  private async listen(end: AbortSignal): Promise<string> {
    const silence = new AbortController()
    let watch = window.setTimeout(() => silence.abort(), SILENCE_MS)
    try {
      const answer = await fetch('/v1/stream', {
        headers: { 'Last-Event-ID': this.place, Accept: 'text/event-stream' },
        signal: AbortSignal.any([end, silence.signal]),
      })
      if (answer.status === 401) void this.client.invalidateQueries({ queryKey: ['who'] })
      if (!answer.ok || !answer.body) throw new Refused(answer.status, '', `it answers ${answer.status}`, null, null)
      // What happened while nobody listened is in what is asked now.
      if (this.failures || this.place === 'now') void this.client.invalidateQueries({ predicate: ({ queryKey }) => isOfJobs(queryKey) })
      this.failures = 0
      this.show({ is: 'live' })
      const take = reader()
      const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader()
      for (;;) {
        const { done, value } = await pieces.read()
        if (done) return 'the service ended the stream'
        window.clearTimeout(watch)
        watch = window.setTimeout(() => silence.abort(), SILENCE_MS)
        take(value).forEach((message) => this.hear(message))
      }
    } catch (error) {
      return error instanceof Refused ? error.message : 'it cannot be reached'
    } finally {
      window.clearTimeout(watch)
    }
  }

  private toast(job: string): void {
    this.warn(job)
    window.clearTimeout(this.warning)
    this.warning = window.setTimeout(() => this.warn(null), TOAST_MS)
  }

  private hear(message: Message): void {
    if (message.id === null) return
    this.place = message.id
    const fact = JSON.parse(message.data) as { job_id: string; kind: string; body: Record<string, unknown> }
    for (const beat of this.beats) beat.hear(fact.job_id)
    if (fact.kind === 'PreemptionNoticed') this.toast(fact.job_id)
    const heard = markOf(fact.kind, fact.body) ?? fact.kind
    this.heard[heard] = (this.heard[heard] ?? 0) + 1
    this.speaking ??= window.setTimeout(() => this.tell(), SPEAK_MS)
  }

  private tell(): void {
    this.speaking = undefined
    this.speak(said(this.heard))
    this.heard = {}
  }
}

const SPOKEN: Record<string, { one: string; more: string }> = {
  notice: MARKS.notice,
  preemption: MARKS.preemption,
  loss: MARKS.loss,
  failure: MARKS.failure,
  TrainingStarted: { one: 'job began to train', more: 'jobs began to train' },
  resume: MARKS.resume,
  Finished: { one: 'job ended', more: 'jobs ended' },
  GuardTripped: { one: 'limit reached', more: 'limits reached' },
}

function said(heard: Record<string, number>): string {
  return Object.entries(SPOKEN)
    .filter(([kind]) => heard[kind])
    .map(([kind, { one, more }]) => `${heard[kind]} ${heard[kind] === 1 ? one : more}`)
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
