// Queries of the team page.

import { useInfiniteQuery, useQuery } from '@tanstack/react-query'
import { get, withQuery } from './client'
import type { Query } from './queries'
import type { AuditPage, Budget, Channel, Delivery, DeliveryPage, Member, Token, User, AuditVerification } from './types'

const project = (name: string, rest: string) => `/v1/projects/${encodeURIComponent(name)}${rest}`

/** Poll intervals: budgets and deliveries are not part of the event stream. The shorter one applies while a delivery waits. */
const EVERY_MS = 30_000
const WAITING_MS = 5_000

function known<T>(key: unknown[], path: string, every: (data: T | undefined) => number | false = () => false): Query<T> {
  // eslint-disable-next-line react-hooks/rules-of-hooks -- called only by hooks
  return useQuery({
    queryKey: ['people', ...key],
    queryFn: ({ signal }) => get<T>(path, signal),
    refetchInterval: ({ state }) => every(state.data),
  })
}

export const useUsers = () => known<User[]>(['users'], '/v1/users')
export const useMembers = (name: string) => known<Member[]>(['members', name], project(name, '/members'))
export const useTokens = (of_all: boolean) => known<Token[]>(['tokens', of_all], withQuery('/v1/tokens', { everybodys: String(of_all) }))
export const useBudgets = () => known<Budget[]>(['budgets'], '/v1/budgets', () => EVERY_MS)
export const useChannels = (name: string) => known<Channel[]>(['channels', name], project(name, '/channels'))
export const useDeliveries = (name: string, channel: string) =>
  known<DeliveryPage>(['deliveries', name, channel], project(name, `/channels/${encodeURIComponent(channel)}/deliveries`), (page) =>
    page?.deliveries.some((one) => one.progress === 'waiting') ? WAITING_MS : EVERY_MS)
export const useAuditVerification = () => known<AuditVerification>(['verdict'], '/v1/audit/verdict')

/** Audit entries, newest first, page by page. */
export const useAuditEntries = (actor: string, target: string) =>
  useInfiniteQuery({
    queryKey: ['people', 'audit', actor, target],
    initialPageParam: null as string | null,
    queryFn: ({ pageParam, signal }) => get<AuditPage>(withQuery('/v1/audit', { actor, target, limit: 200, cursor: pageParam }), signal),
    getNextPageParam: (page) => page.next,
    select: ({ pages }) => pages.flatMap((page) => page.rows),
  })

export type { Delivery }
