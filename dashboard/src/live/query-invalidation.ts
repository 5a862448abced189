// Refetches queries that an event made stale: soon, at a limited rate per class of queries, and without cancelling a running request.

import type { Query, QueryClient } from '@tanstack/react-query'

/** Delay that batches events. A lower value adds requests; a higher value makes the delay visible. */
const GATHER_MS = 250

/** Whether events of some jobs make a query stale. */
type IsStale = (key: readonly unknown[], ids: ReadonlySet<string>) => boolean

/** Refetches one class of queries. */
export class QueryInvalidator {
  private ids = new Set<string>()
  /** Queries that were in flight when an event arrived, so that their answer may not include it. */
  private pending = new Set<string>()
  private timer: ReturnType<typeof setTimeout> | undefined
  private invalidatedAt = -Infinity

  constructor(
    private readonly client: QueryClient,
    /** Shortest interval between two refetches. */
    private readonly pace_ms: number,
    private readonly isStale: IsStale,
  ) {}

  add(id: string): void {
    this.ids.add(id)
    this.schedule()
  }

  private schedule(): void {
    this.timer ??= setTimeout(() => this.invalidate(), Math.max(GATHER_MS, this.invalidatedAt + this.pace_ms - Date.now()))
  }

  private invalidate(): void {
    const { ids, pending } = this
    const wanted = (query: Query): boolean => pending.has(query.queryHash) || (ids.size > 0 && this.isStale(query.queryKey, ids))
    const all = this.client.getQueryCache().findAll({ predicate: wanted })
    // A refetch cancels the running request; with slow answers, none would ever arrive.
    const later = all.filter((query) => query.state.fetchStatus === 'fetching').map((query) => query.queryHash)
    this.timer = undefined
    this.invalidatedAt = Date.now()
    this.ids = new Set()
    this.pending = new Set(later)
    void this.client.invalidateQueries({ predicate: (query) => all.includes(query) && !this.pending.has(query.queryHash) })
    if (later.length > 0) this.schedule()
  }
}
