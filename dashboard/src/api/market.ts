// What the pages about nodes and prices read.

import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { asked, get } from './client'
import type { Query } from './queries'
import type { Notices, Preemptions, PriceHistory, Prices, Tolls } from './types'

const EVERY_MS = 30_000

/** Of which losses is asked; what is empty does not matter. */
export interface Wanted {
  since: string
  zone: string
  type: string
}

/** An answer with what was asked: while another is under way, that is not what is chosen now. */
export type Told<T> = T & { asked: Record<string, string> }

function about<T>(path: string, words: Record<string, string>): Query<Told<T>> {
  // eslint-disable-next-line react-hooks/rules-of-hooks -- called by hooks alone
  return useQuery({
    queryKey: ['sums', path, words],
    queryFn: async ({ signal }) => ({ ...(await get<T>(asked(path, words), signal)), asked: words }),
    refetchInterval: EVERY_MS,
    placeholderData: keepPreviousData,
  })
}

export const useLosses = (wanted: Wanted, by: string, hours = ''): Query<Told<Preemptions>> =>
  about('/v1/preemptions', { ...wanted, by, hours })
export const useNotices = (wanted: Wanted): Query<Notices> => about('/v1/preemptions/notices', { ...wanted })
export const useTolls = (wanted: Wanted): Query<Tolls> => about('/v1/preemptions/jobs', { ...wanted })

/** Lists of prices change with no fact of ours. */
const PRICES_MS = 600_000

export const usePrices = (): Query<Prices> =>
  useQuery({
    queryKey: ['prices'],
    queryFn: ({ signal }) => get<Prices>(asked('/v1/prices', { limit: 1000 }), signal),
    staleTime: PRICES_MS,
  })

export const usePriceHistory = (accelerator: string, region: string, since: string): Query<PriceHistory> =>
  useQuery({
    queryKey: ['prices', accelerator, region, since],
    enabled: accelerator !== '',
    queryFn: ({ signal }) => get<PriceHistory>(asked('/v1/prices/history', { accelerator, region, since }), signal),
    staleTime: PRICES_MS,
    refetchInterval: PRICES_MS,
    placeholderData: keepPreviousData,
  })
