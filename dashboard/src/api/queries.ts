// What pages read. Keys begin with what a fact of the stream makes stale: ['job', id, ...], ['all', ...] for lists of jobs, and
// ['sums', ...].

import { keepPreviousData, useInfiniteQuery, useQuery, type UseQueryResult } from '@tanstack/react-query'
import { asked, get, Refused } from './client'
import type {
  Attempt, Bill, CheckpointPage, Costs, Fact, Hints, Job, JobPage, Launcher, LogSource, Preemptions, Prices, Project, Sentence, SeriesPage, Session, Who,
} from './types'

/** Points are no facts, and come over no stream: how often a page looks for them. */
const STEPS_MS = 5_000
/** Sums over all jobs are dearer, and change little in a moment. */
const SUMS_MS = 30_000

/** Of a curve: two for each pixel of a wide one. */
const CURVE_POINTS = 1_500

type Key = readonly unknown[]
type Ids = ReadonlySet<string>

/** The attempts of one job among many in a list. */
const isLane = (key: Key): boolean => key[0] === 'job' && key[2] === 'attempts'

/** Whether an answer follows from facts about jobs. */
export const isOfJobs = ([of]: Key): boolean => of === 'job' || of === 'all' || of === 'sums'
/** Whether facts about some jobs make an answer stale, and it is to be asked for anew soon. */
export const isOfJob = (key: Key, ids: Ids): boolean => key[0] === 'all' || (key[0] === 'job' && ids.has(String(key[1])) && !isLane(key))
/** The same of answers that are dear: sums over all jobs, and the lanes in their lists. */
export const isDear = (key: Key, ids: Ids): boolean => key[0] === 'sums' || (isLane(key) && ids.has(String(key[1])))

const job = (id: string, rest = '') => `/v1/jobs/${encodeURIComponent(id)}${rest}`

export type Query<T> = Pick<UseQueryResult<T, Error>, 'data' | 'error' | 'isPending' | 'isPlaceholderData' | 'dataUpdatedAt'> & { refetch: () => unknown }

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

export interface JobFilter {
  statuses: string[]
  find?: string
  project?: string
  /** name=value, or a name alone; jobs have all of them. */
  tags?: string[]
}

/** As many as a page of the API has. */
const JOBS_AT_ONCE = 200

/** Jobs, newest first, page after page. */
export const useJobs = ({ statuses, find = '', project = '', tags = [] }: JobFilter) =>
  useInfiniteQuery({
    queryKey: ['all', 'jobs', statuses, find, project, tags],
    initialPageParam: null as string | null,
    queryFn: ({ pageParam, signal }) =>
      get<JobPage>(asked('/v1/jobs', { status: statuses, find, project, tag: tags, limit: JOBS_AT_ONCE, cursor: pageParam }), signal),
    getNextPageParam: (page) => page.next,
    refetchInterval: STEPS_MS,
    placeholderData: keepPreviousData,
    select: ({ pages }) => ({
      jobs: pages.flatMap((page) => page.jobs),
      total: pages.at(-1)?.total ?? 0,
    }),
  })

export type Jobs = ReturnType<typeof useJobs>

/** At most so many jobs are offered of those that are called so. */
const OFFERED = 8

/** The newest jobs with a text in their name or id. */
export const useFound = (find: string): Query<JobPage> =>
  useQuery({
    queryKey: ['all', 'found', find],
    queryFn: ({ signal }) => get<JobPage>(asked('/v1/jobs', { find: find.trim(), limit: OFFERED }), signal),
  })

export const useLaunchers = (): Query<Launcher[]> =>
  useQuery({ queryKey: ['launchers'], queryFn: ({ signal }) => get<Launcher[]>('/v1/launchers', signal), staleTime: SUMS_MS })

/** All that is known of some prices, as far as one answer has room. */
export const usePrices = (wanted: { accelerator: string; cloud: string; region: string }): Query<Prices> =>
  useQuery({
    queryKey: ['prices', wanted],
    queryFn: ({ signal }) => get<Prices>(asked('/v1/prices', { ...wanted, limit: 1000 }), signal),
    placeholderData: keepPreviousData,
    staleTime: SUMS_MS,
  })

export const useProjects = () =>
  useQuery({ queryKey: ['people', 'projects'], queryFn: ({ signal }) => get<Project[]>('/v1/projects', signal) })

/** Of sums by day, the newest would be cut off: more than the longest span has, and as many as the API tells where days are told apart. */
const DAYS_AT_ONCE = 1_000
const PARTS_AT_ONCE = 100_000
const SUMS_AT_ONCE = 200

export const useCosts = (by: string, since: string, each: string | null = null): Query<Costs> =>
  useQuery({
    queryKey: ['sums', 'costs', by, each, since],
    queryFn: ({ signal }) => get<Costs>(asked('/v1/costs', { by, each, since, limit: each ? PARTS_AT_ONCE : by === 'day' ? DAYS_AT_ONCE : SUMS_AT_ONCE }), signal),
    refetchInterval: SUMS_MS,
    placeholderData: keepPreviousData,
  })

export const usePreemptions = (since: string): Query<Preemptions> =>
  useQuery({
    queryKey: ['sums', 'preemptions', since],
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
/** What its trouble looks like; logs are read only where the program has failed, and will print no more. */
export const useHints = (id: string, live: boolean, has_failed: boolean) =>
  part<Hints>(id, `hints ${has_failed}`, `/hints?logs=${has_failed}`, live && SUMS_MS)
export const useFacts = (id: string) => part<Fact[]>(id, 'events', '/events', false)
/** Which series there are. */
export const useSeriesNames = (id: string, live: boolean) => part<SeriesPage>(id, 'series', '/series', while_live(live))
/** Some of them as curves; with names alone it would be asked which there are. */
export const useSeries = (id: string, names: string[], live: boolean): Query<SeriesPage> =>
  useQuery({
    queryKey: ['job', id, 'series', names],
    enabled: names.length > 0,
    queryFn: ({ signal }) => get<SeriesPage>(asked(job(id, '/series'), { name: names, points: CURVE_POINTS }), signal),
    refetchInterval: while_live(live),
    placeholderData: keepPreviousData,
  })
/** What the newest attempt that told it came from. */
export const useManifest = (id: string) => part<Record<string, unknown>>(id, 'manifest', '/manifest', false)
export const useCheckpoints = (id: string) =>
  part<CheckpointPage>(id, 'checkpoints', '/checkpoints?limit=1000', false)
export const useLogs = (id: string, live: boolean) => part<LogSource[]>(id, 'logs', '/logs', while_live(live))
