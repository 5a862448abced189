// Queries of sweeps, of the queue and of quotas. Events of jobs make them stale, as they do with totals.

import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { get, withQuery } from './client'
import type { Query } from './queries'
import type { Costs, Queue, Quota, Sweep, SweepDetail, SweepMetrics } from './types'

/** Poll interval. Metric points and the age of waiting jobs are not part of the event stream. */
const EVERY_MS = 30_000
/** Sweeps in the list, sweeps with their costs, and jobs of the queue: the API's largest page, and what a table can show at once. */
const SWEEPS_AT_ONCE = 200
const COSTS_AT_ONCE = 1_000
const WAITING_AT_ONCE = 1_000
/** Values of each curve: one for two pixels of a wide chart. The service returns fewer for many jobs. */
const CURVE_POINTS = 600

const sweep = (id: string, rest = '') => `/v1/sweeps/${encodeURIComponent(id)}${rest}`

function known<T>(key: unknown[], path: string): Query<T> {
  // eslint-disable-next-line react-hooks/rules-of-hooks -- called only by hooks
  return useQuery({
    queryKey: ['sums', ...key],
    queryFn: ({ signal }) => get<T>(path, signal),
    refetchInterval: EVERY_MS,
    placeholderData: keepPreviousData,
  })
}

export const useSweeps = (): Query<Sweep[]> => known(['sweeps'], `/v1/sweeps?limit=${SWEEPS_AT_ONCE}`)
export const useSweep = (id: string): Query<SweepDetail> =>
  useQuery({ queryKey: ['sums', 'sweep', id], queryFn: ({ signal }) => get<SweepDetail>(sweep(id), signal), refetchInterval: EVERY_MS })

/** A metric of all jobs of a sweep; an empty name returns only the names of metrics. Events do not make it stale: it is read from all points. */
export const useSweepMetrics = (id: string, name: string): Query<SweepMetrics> =>
  useQuery({
    queryKey: ['sweep metrics', id, name],
    queryFn: ({ signal }) => get<SweepMetrics>(withQuery(sweep(id, '/metrics'), { name, points: name ? CURVE_POINTS : '' }), signal),
    refetchInterval: EVERY_MS,
    placeholderData: keepPreviousData,
  })

/** What the jobs with the tag of each sweep have cost, with the copies of its jobs. */
export const useSweepCosts = (): Query<Costs> => known(['costs', 'sweeps'], withQuery('/v1/costs', { by: 'tag:sweep', limit: COSTS_AT_ONCE }))

export const useQueue = (): Query<Queue> => known(['queue'], `/v1/queue?limit=${WAITING_AT_ONCE}`)
export const useQuotas = (): Query<Quota[]> => known(['quotas'], '/v1/quotas')
