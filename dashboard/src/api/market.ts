// Queries of the pages on preemptions and prices.

import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { get, withQuery } from './client'
import type { Query } from './queries'
import type { Notices, PreemptionHistory, Preemptions, PriceHistory, Prices, PreemptionCosts } from './types'

const EVERY_MS = 30_000

/** Filter of the preemption queries; an empty field matches all. */
export interface PreemptionFilter {
  since: string
  zone: string
  type: string
}

/** A response with the parameters of its request, which may differ from the current selection while a new request runs. */
export type WithRequest<T> = T & { request: Record<string, string> }

function query<T>(path: string, params: Record<string, string>): Query<WithRequest<T>> {
  // eslint-disable-next-line react-hooks/rules-of-hooks -- called only by hooks
  return useQuery({
    queryKey: ['sums', path, params],
    queryFn: async ({ signal }) => ({ ...(await get<T>(withQuery(path, params), signal)), request: params }),
    refetchInterval: EVERY_MS,
    placeholderData: keepPreviousData,
  })
}

export const usePreemptionRates = (filter: PreemptionFilter, by: string, hours = ''): Query<WithRequest<Preemptions>> =>
  query('/v1/preemptions', { ...filter, by, hours })
export const useNotices = (filter: PreemptionFilter): Query<Notices> => query('/v1/preemptions/notices', { ...filter })
export const usePreemptionHistory = (filter: PreemptionFilter): Query<PreemptionHistory> => query('/v1/preemptions/history', { ...filter, limit: '500' })
export const usePreemptionCosts = (filter: PreemptionFilter): Query<PreemptionCosts> => query('/v1/preemptions/jobs', { ...filter })

/** Price lists change independently of job events. */
const PRICES_MS = 600_000

export const usePrices = (): Query<Prices> =>
  useQuery({
    queryKey: ['prices'],
    queryFn: ({ signal }) => get<Prices>(withQuery('/v1/prices', { limit: 1000 }), signal),
    staleTime: PRICES_MS,
  })

export const usePriceHistory = (accelerator: string, region: string, since: string): Query<PriceHistory> =>
  useQuery({
    queryKey: ['prices', accelerator, region, since],
    enabled: accelerator !== '',
    queryFn: ({ signal }) => get<PriceHistory>(withQuery('/v1/prices/history', { accelerator, region, since }), signal),
    staleTime: PRICES_MS,
    refetchInterval: PRICES_MS,
    placeholderData: keepPreviousData,
  })
