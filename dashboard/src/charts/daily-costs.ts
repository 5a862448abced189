// The cost of each day, by part. Pure.

import type { Cost } from '../api/types'
import { exactMoney } from '../format'

export type Measure = 'paid' | 'charged' | 'total' | 'on_demand' | 'wasted'

/** The nodes and what is beside them, as far as prices are known. */
export const totalOf = (cost: Cost): number => cost.total_micros ?? cost.paid_micros

const NOTHING = { storage: 0, requests: 0, egress: 0, disks: 0 }

/** What is beside the nodes, as a sum in words. */
export function besideWords({ charges = NOTHING, has_unpriced }: Cost): string {
  const parts = Object.entries(charges).map(([name, micros]) => `${name} ${exactMoney(micros)}`)
  return `= ${parts.join(' + ')}${has_unpriced ? ', without what has no known price' : ''}`
}

export const MEASURES: Record<Measure, { word: string; of: (cost: Cost) => number }> = {
  paid: { word: 'Paid', of: (cost) => cost.paid_micros },
  charged: { word: 'Beside nodes', of: (cost) => cost.charged_micros },
  total: { word: 'Total', of: totalOf },
  on_demand: { word: 'On demand', of: (cost) => cost.on_demand_micros },
  wasted: { word: 'Wasted', of: (cost) => cost.wasted_micros },
}

export interface DailyCost {
  day: string
  /** Amounts in the order of `parts`, then the sum of all others. */
  micros: number[]
}

export interface DailyCosts {
  /** Most expensive first, at most `MOST_PARTS`. */
  parts: string[]
  /** Number of further parts, summed up as one. */
  others: number
  days: DailyCost[]
}

/** Parts with a fill pattern of their own. A higher value makes patterns hard to distinguish. */
export const MOST_PARTS = 6

/** Every day from the first to the last, including days without data. */
export function daysFrom(days: string[]): string[] {
  const [first, last] = [days[0], days.at(-1)]
  if (!first || !last) return []
  const all = []
  for (let at = Date.parse(first); at <= Date.parse(last); at += 86_400_000) all.push(new Date(at).toISOString().slice(0, 10))
  return all
}

/** Costs by day and part, the oldest day first. */
export function dailyCostsOf(costs: Cost[], measure: Measure): DailyCosts {
  const { of } = MEASURES[measure]
  const sums = new Map<string, number>()
  for (const cost of costs) sums.set(cost.part ?? '', (sums.get(cost.part ?? '') ?? 0) + of(cost))
  const order = [...sums].sort(([a, x], [b, y]) => y - x || a.localeCompare(b, 'en')).map(([part]) => part)
  const parts = order.slice(0, MOST_PARTS)
  const place = new Map(parts.map((part, at) => [part, at]))
  const width = order.length > parts.length ? parts.length + 1 : parts.length
  const days = new Map(daysFrom(costs.map((cost) => cost.key)).map((day) => [day, Array<number>(width).fill(0)]))
  for (const cost of costs) {
    const micros = days.get(cost.key)
    const at = place.get(cost.part ?? '') ?? parts.length
    if (micros) micros[at] = (micros[at] ?? 0) + of(cost)
  }
  return { parts, others: order.length - parts.length, days: [...days].map(([day, micros]) => ({ day, micros })) }
}
