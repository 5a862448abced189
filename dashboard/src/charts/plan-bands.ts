// The choices of a plan as bands over time: on spot nodes, on on-demand nodes, or waiting. Pure.

import type { Attempt, PlanChoice } from '../api/types'
import { CAPACITIES, capacityOf, type Capacity } from '../phases'

export interface Band {
  capacity: Capacity
  from: number
  to: number
  words: string
}

/** The choices from old to new, each until the next one. A request that waits for spot nodes has them while an attempt lasts. */
export function bandsOf(choices: PlanChoice[], attempts: Pick<Attempt, 'ready_at' | 'ended_at'>[], end: number): Band[] {
  return choices.toReversed().flatMap((choice) => {
    const [from, to] = [Date.parse(choice.at), choice.until ? Date.parse(choice.until) : end]
    const band = (capacity: Capacity, from: number, to: number): Band => ({ capacity, from, to, words: `${CAPACITIES[capacity].word}: ${choice.sentence}` })
    if (choice.reason !== 'wait_for_spot') return [band(capacityOf(choice.capacity), from, to)].filter((one) => one.to > one.from)
    const bands: Band[] = []
    let at = from
    for (const { ready_at, ended_at } of attempts) {
      const [ready, ended] = [Math.max(at, Date.parse(ready_at)), Math.min(to, ended_at ? Date.parse(ended_at) : to)]
      if (ended <= ready) continue
      bands.push(band('waiting', at, ready), band('spot', ready, ended))
      at = ended
    }
    return [...bands, band('waiting', at, to)].filter((one) => one.to > one.from)
  })
}
