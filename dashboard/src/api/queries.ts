// What pages read. Keys begin with what a fact of the stream makes stale: ['job', id, ...] or ['all', ...].

import { keepPreviousData, useQuery, type UseQueryResult } from '@tanstack/react-query'
import { ask, asked, get, Refused } from './client'
import type {
  Attempt, Bill, CheckpointPage, Costs, Fact, Job, JobPage, LogSource, Point, Preemptions, Sentence, Session, Who,
} from './types'

/** Points are no facts, and come over no stream: how often a page looks for them. */
const STEPS_MS = 5_000
/** Sums over all jobs are dearer, and change little in a moment. */
const SUMS_MS = 30_000

const job = (id: string, rest = '') => `/v1/jobs/${encodeURIComponent(id)}${rest}`

export type Query<T> = UseQueryResult<T, Error>

export const useWho = () =>
  useQuery({ queryKey: ['who'], queryFn: ({ signal }) => get<Who>('/v1/whoami', signal), staleTime: Infinity })

export const useSession = (enabled: boolean) =>
  useQuery({
    queryKey: ['session'],
    enabled,
    staleTime: Infinity,
    queryFn: async ({ signal }) => {
      try {
        return await get<Session>('/v1/session', signal)
      } catch (error) {
        if (error instanceof Refused && error.status === 404) return null
        throw error
      }
    },
  })

export function useJobs(statuses: string[], limit: number): Query<JobPage> {
  return useQuery({
    queryKey: ['all', 'jobs', statuses, limit],
    queryFn: ({ signal }) => get<JobPage>(asked('/v1/jobs', { status: statuses, limit }), signal),
    refetchInterval: STEPS_MS,
    placeholderData: keepPreviousData,
  })
}

export const useCosts = (by: string, since: string): Query<Costs> =>
  useQuery({
    queryKey: ['all', 'costs', by, since],
    queryFn: ({ signal }) => get<Costs>(asked('/v1/costs', { by, since, limit: 200 }), signal),
    refetchInterval: SUMS_MS,
    placeholderData: keepPreviousData,
  })

export const usePreemptions = (since: string): Query<Preemptions> =>
  useQuery({
    queryKey: ['all', 'preemptions', since],
    queryFn: ({ signal }) => get<Preemptions>(asked('/v1/preemptions', { by: 'cause', since }), signal),
    refetchInterval: SUMS_MS,
  })

function part<T>(id: string, name: string, path: string, every: number | false): Query<T> {
  // eslint-disable-next-line react-hooks/rules-of-hooks -- called by hooks alone
  return useQuery({
    queryKey: ['job', id, name],
    queryFn: ({ signal }) => get<T>(job(id, path), signal),
    refetchInterval: every,
  })
}

const while_live = (live: boolean) => live && STEPS_MS

export const useJob = (id: string) =>
  useQuery({
    queryKey: ['job', id, 'itself'],
    queryFn: ({ signal }) => get<Job>(job(id), signal),
    refetchInterval: STEPS_MS,
  })
export const useBill = (id: string, live: boolean) => part<Bill>(id, 'bill', '/bill', while_live(live))
export const useAttempts = (id: string) => part<Attempt[]>(id, 'attempts', '/attempts', SUMS_MS)
export const useStory = (id: string, live: boolean) => part<Sentence[]>(id, 'story', '/story', while_live(live))
export const useFacts = (id: string) => part<Fact[]>(id, 'events', '/events', false)
export const usePoints = (id: string, live: boolean) =>
  part<Point[]>(id, 'metrics', '/metrics?limit=10000', while_live(live))
export const useCheckpoints = (id: string) =>
  part<CheckpointPage>(id, 'checkpoints', '/checkpoints?limit=1000', false)
export const useLogs = (id: string, live: boolean) => part<LogSource[]>(id, 'logs', '/logs', while_live(live))

/** The end of a log, so much that a browser can show it. */
export const LOG_BYTES = 256 * 1024

export interface LogEnd {
  text: string
  begins: number
}

export function useLogEnd(id: string, log: LogSource | null): Query<LogEnd> {
  const begins = Math.max(0, (log?.size_bytes ?? 0) - LOG_BYTES)
  return useQuery({
    queryKey: ['job', id, 'log', log?.attempt, log?.node, log?.rank, log?.size_bytes],
    enabled: log !== null,
    placeholderData: keepPreviousData,
    queryFn: async ({ signal }) => {
      const place = { attempt: log?.attempt ?? null, node: log?.node ?? null, rank: log?.rank ?? null }
      const path = asked(job(id, '/logs/text'), { ...place, offset: begins, limit: LOG_BYTES })
      return { text: await (await ask(path, { signal })).text(), begins }
    },
  })
}
