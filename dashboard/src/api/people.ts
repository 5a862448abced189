// What the team's page reads: people, tokens, budgets, notifications, and what was done.

import { useInfiniteQuery, useQuery } from '@tanstack/react-query'
import { asked, get } from './client'
import type { Query } from './queries'
import type { AuditPage, Budget, Channel, Delivery, DeliveryPage, Member, Token, User, Verdict } from './types'

const project = (name: string, rest: string) => `/v1/projects/${encodeURIComponent(name)}${rest}`

/** What is spent and sent comes over no stream: how often a page looks for it, and how often while somebody waits for it. */
const EVERY_MS = 30_000
const WAITING_MS = 5_000

function known<T>(key: unknown[], path: string, every: (data: T | undefined) => number | false = () => false): Query<T> {
  // eslint-disable-next-line react-hooks/rules-of-hooks -- called by hooks alone
  return useQuery({
    queryKey: ['people', ...key],
    queryFn: ({ signal }) => get<T>(path, signal),
    refetchInterval: ({ state }) => every(state.data),
  })
}

export const useUsers = () => known<User[]>(['users'], '/v1/users')
export const useMembers = (name: string) => known<Member[]>(['members', name], project(name, '/members'))
export const useTokens = (everybodys: boolean) => known<Token[]>(['tokens', everybodys], asked('/v1/tokens', { everybodys: String(everybodys) }))
export const useBudgets = () => known<Budget[]>(['budgets'], '/v1/budgets', () => EVERY_MS)
export const useChannels = (name: string) => known<Channel[]>(['channels', name], project(name, '/channels'))
export const useDeliveries = (name: string, channel: string) =>
  known<DeliveryPage>(['deliveries', name, channel], project(name, `/channels/${encodeURIComponent(channel)}/deliveries`), (page) =>
    page?.deliveries.some((one) => one.progress === 'waiting') ? WAITING_MS : EVERY_MS)
export const useVerdict = () => known<Verdict>(['verdict'], '/v1/audit/verdict')

/** What was done, newest first, page after page. */
export const useDeeds = (actor: string, target: string) =>
  useInfiniteQuery({
    queryKey: ['people', 'audit', actor, target],
    initialPageParam: null as string | null,
    queryFn: ({ pageParam, signal }) => get<AuditPage>(asked('/v1/audit', { actor, target, limit: 200, cursor: pageParam }), signal),
    getNextPageParam: (page) => page.next,
    select: ({ pages }) => pages.flatMap((page) => page.rows),
  })

export type { Delivery }
