// Queries of the pages. Keys start with the scope that an event makes stale: ['job', id, ...], ['all', ...] for job lists, and
// ['sums', ...].

import { keepPreviousData, useInfiniteQuery, useQuery, type UseQueryResult } from '@tanstack/react-query'
import { get, transfer, withQuery, ResponseError } from './client'
import type {
  Attempt, Bill, CheckpointPage, Costs, Gpus, JobEvent, Hints, Job, JobPage, Launcher, LogSource, Outputs, Preemptions, Prices, Project, ResumePreview, ResumeRequest, Sentence, SeriesPage, Session, CurrentUser,
} from './types'

/** Poll interval of live data. Metric points are not part of the event stream. */
const STEPS_MS = 5_000
/** Poll interval of totals, which are expensive and change slowly. */
const SUMS_MS = 30_000

/** Points per metric: two per pixel of a wide chart. */
const CURVE_POINTS = 1_500

type Key = readonly unknown[]
type Ids = ReadonlySet<string>

/** Whether a key is the attempts of a job in a list. */
const isLane = (key: Key): boolean => key[0] === 'job' && key[2] === 'attempts'

/** Whether a query depends on job events. */
export const isOfJobs = ([of]: Key): boolean => of === 'job' || of === 'all' || of === 'sums'
/** Whether events of some jobs make a query stale that is refetched soon. */
export const isOfJob = (key: Key, ids: Ids): boolean => key[0] === 'all' || (key[0] === 'job' && ids.has(String(key[1])) && !isLane(key))
/** The same for expensive queries: totals, and attempts in job lists. */
export const isDear = (key: Key, ids: Ids): boolean => key[0] === 'sums' || (isLane(key) && ids.has(String(key[1])))

const job = (id: string, rest = '') => `/v1/jobs/${encodeURIComponent(id)}${rest}`

export type Query<T> = Pick<UseQueryResult<T, Error>, 'data' | 'error' | 'errorUpdateCount' | 'isPending' | 'isPlaceholderData' | 'dataUpdatedAt'> & { refetch: () => unknown }

export const useCurrentUser = () =>
  useQuery({ queryKey: ['who'], queryFn: ({ signal }) => get<CurrentUser>('/v1/whoami', signal), staleTime: Infinity })

export const useSession = (enabled: boolean) =>
  useQuery({
    queryKey: ['session'],
    enabled,
    staleTime: Infinity,
    queryFn: async ({ signal }) => {
      try {
        return await get<Session>('/v1/session', signal)
      } catch (error) {
        if (error instanceof ResponseError && error.status === 404) return null
        throw error
      }
    },
  })

export interface JobFilter {
  statuses: string[]
  find?: string
  project?: string
  /** name=value, or a name alone; jobs must have all of them. */
  tags?: string[]
  /** A condition on tags, such as team=nlp,stage!=dev. */
  selector?: string
  owner?: string
  launcher?: string
}

/** The API's page size limit. */
const JOBS_AT_ONCE = 200

/** Jobs, newest first, page by page. */
export const useJobs = ({ statuses, tags = [], ...rest }: JobFilter) =>
  useInfiniteQuery({
    queryKey: ['all', 'jobs', statuses, tags, rest],
    initialPageParam: null as string | null,
    queryFn: ({ pageParam, signal }) =>
      get<JobPage>(withQuery('/v1/jobs', { status: statuses, tag: tags, ...rest, limit: JOBS_AT_ONCE, cursor: pageParam }), signal),
    getNextPageParam: (page) => page.next,
    refetchInterval: STEPS_MS,
    placeholderData: keepPreviousData,
    select: ({ pages }) => ({
      jobs: pages.flatMap((page) => page.jobs),
      total: pages.at(-1)?.total ?? 0,
    }),
  })

export type Jobs = ReturnType<typeof useJobs>

/** Largest number of search results. */
const MOST_RESULTS = 8

/** The newest jobs whose name or id contains a text. */
export const useJobSearch = (find: string): Query<JobPage> =>
  useQuery({
    queryKey: ['all', 'found', find],
    queryFn: ({ signal }) => get<JobPage>(withQuery('/v1/jobs', { find: find.trim(), limit: MOST_RESULTS }), signal),
  })

export const useLaunchers = (): Query<Launcher[]> =>
  useQuery({ queryKey: ['launchers'], queryFn: ({ signal }) => get<Launcher[]>('/v1/launchers', signal), staleTime: SUMS_MS })

/** Prices that match a filter, up to the API's limit. */
export const usePrices = (filter: { accelerator: string; cloud: string; region: string }): Query<Prices> =>
  useQuery({
    queryKey: ['prices', filter],
    queryFn: ({ signal }) => get<Prices>(withQuery('/v1/prices', { ...filter, limit: 1000 }), signal),
    placeholderData: keepPreviousData,
    staleTime: SUMS_MS,
  })

export const useProjects = () =>
  useQuery({ queryKey: ['people', 'projects'], queryFn: ({ signal }) => get<Project[]>('/v1/projects', signal) })

/** Largest number of days, of parts by day, and of groups. The API cuts off the newest days, so the first is above the longest period. */
const DAYS_AT_ONCE = 1_000
const PARTS_AT_ONCE = 100_000
const SUMS_AT_ONCE = 200

export const useCosts = (by: string, since: string, each: string | null = null): Query<Costs> =>
  useQuery({
    queryKey: ['sums', 'costs', by, each, since],
    queryFn: ({ signal }) => get<Costs>(withQuery('/v1/costs', { by, each, since, limit: each ? PARTS_AT_ONCE : by === 'day' ? DAYS_AT_ONCE : SUMS_AT_ONCE }), signal),
    refetchInterval: SUMS_MS,
    placeholderData: keepPreviousData,
  })

export const usePreemptions = (since: string): Query<Preemptions> =>
  useQuery({
    queryKey: ['sums', 'preemptions', since],
    queryFn: ({ signal }) => get<Preemptions>(withQuery('/v1/preemptions', { by: 'cause', since }), signal),
    refetchInterval: SUMS_MS,
  })

function part<T>(id: string, name: string, path: string, every: number | false, enabled = true): Query<T> {
  // eslint-disable-next-line react-hooks/rules-of-hooks -- called only by hooks
  return useQuery({
    queryKey: ['job', id, name],
    enabled,
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
/** What a resume would change; null while no preview is wanted. */
export const useResumePreview = (id: string, asked: ResumeRequest | null) =>
  useQuery({
    queryKey: ['job', id, 'resume', asked],
    enabled: asked !== null,
    queryFn: () => transfer<ResumePreview>('POST', job(id, '/resume/preview'), asked) as Promise<ResumePreview>,
    placeholderData: keepPreviousData,
  })
export const useBill = (id: string, live: boolean) => part<Bill>(id, 'bill', '/bill', while_live(live))
export const useAttempts = (id: string) => part<Attempt[]>(id, 'attempts', '/attempts', SUMS_MS)
export const useTimeline = (id: string, live: boolean) => part<Sentence[]>(id, 'story', '/story', while_live(live))
/** Hints on a job's problem. Logs are read only after a failure, when they no longer grow. */
export const useHints = (id: string, live: boolean, has_failed: boolean) =>
  part<Hints>(id, `hints ${has_failed}`, `/hints?logs=${has_failed}`, live && SUMS_MS)
export const useEvents = (id: string) => part<JobEvent[]>(id, 'events', '/events', false)
/** Names of the metrics. */
export const useSeriesNames = (id: string, live: boolean) => part<SeriesPage>(id, 'series', '/series', while_live(live))
/** The newest readings of its GPUs, which change more slowly than metrics. */
export const useGpus = (id: string, live: boolean) => part<Gpus>(id, 'gpus', '/gpus', live && SUMS_MS)
/** Values of some metrics. */
export const useSeries = (id: string, names: string[], live: boolean): Query<SeriesPage> =>
  useQuery({
    queryKey: ['job', id, 'series', names],
    enabled: names.length > 0,
    queryFn: ({ signal }) => get<SeriesPage>(withQuery(job(id, '/series'), { name: names, points: CURVE_POINTS }), signal),
    refetchInterval: while_live(live),
    placeholderData: keepPreviousData,
  })
/** The newest reported manifest. */
export const useManifest = (id: string) => part<Record<string, unknown>>(id, 'manifest', '/manifest', false)
export const useCheckpoints = (id: string) =>
  part<CheckpointPage>(id, 'checkpoints', '/checkpoints?limit=1000', false)
/** Output files, as the store has them. */
export const useOutputs = (id: string) => part<Outputs>(id, 'outputs', '/outputs', false)
export const useLogs = (id: string, live: boolean, enabled = true) => part<LogSource[]>(id, 'logs', '/logs', while_live(live), enabled)
