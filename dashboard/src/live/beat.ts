// When answers that a fact has made stale are asked for anew: soon, but each kind at most so often, and none that is under way.

import type { Query, QueryClient } from '@tanstack/react-query'

/** From the first fact until it is answered, so that those that come together are. Smaller: more requests. Bigger: people notice the delay. */
const GATHER_MS = 250

/** Whether facts about some jobs make an answer stale. */
type IsStale = (key: readonly unknown[], ids: ReadonlySet<string>) => boolean

/** Asks anew for one kind of answers. */
export class Beat {
  private ids = new Set<string>()
  /** Answers that were under way when a fact came, and may not have it in them. */
  private owed = new Set<string>()
  private timer: ReturnType<typeof setTimeout> | undefined
  private askedAt = -Infinity

  constructor(
    private readonly client: QueryClient,
    /** From one time to the next, at least. */
    private readonly pace_ms: number,
    private readonly isStale: IsStale,
  ) {}

  hear(id: string): void {
    this.ids.add(id)
    this.wait()
  }

  private wait(): void {
    this.timer ??= setTimeout(() => this.ask(), Math.max(GATHER_MS, this.askedAt + this.pace_ms - Date.now()))
  }

  private ask(): void {
    const { ids, owed } = this
    const wanted = (query: Query): boolean => owed.has(query.queryHash) || (ids.size > 0 && this.isStale(query.queryKey, ids))
    const all = this.client.getQueryCache().findAll({ predicate: wanted })
    // To ask once more for what is under way would end it, and where answers are slow none would ever come.
    const later = all.filter((query) => query.state.fetchStatus === 'fetching').map((query) => query.queryHash)
    this.timer = undefined
    this.askedAt = Date.now()
    this.ids = new Set()
    this.owed = new Set(later)
    void this.client.invalidateQueries({ predicate: (query) => all.includes(query) && !this.owed.has(query.queryHash) })
    if (later.length > 0) this.wait()
  }
}
