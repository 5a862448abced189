import { QueryClient, QueryObserver } from '@tanstack/react-query'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { isDear, isOfJob } from '../api/queries'
import { QueryInvalidator } from './query-invalidation'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

interface Place {
  client: QueryClient
  /** How often each answer was asked for, by its name. */
  asked: Record<string, number>
  /** Those that were ended before they came. */
  ended: string[]
}

/** A page on which some answers are shown, each of which takes so long. */
async function page(keys: unknown[][], takes_ms: number): Promise<Place> {
  const client = new QueryClient()
  const place: Place = { client, asked: {}, ended: [] }
  for (const queryKey of keys) {
    const name = queryKey.join(' ')
    const queryFn = ({ signal }: { signal: AbortSignal }) => {
      place.asked[name] = (place.asked[name] ?? 0) + 1
      signal.addEventListener('abort', () => place.ended.push(name))
      return new Promise((resolve) => setTimeout(() => resolve(name), takes_ms))
    }
    new QueryObserver(client, { queryKey, queryFn, staleTime: Infinity }).subscribe(() => {})
  }
  await vi.advanceTimersByTimeAsync(takes_ms)
  return place
}

it('batches simultaneous events into one prompt refetch', async () => {
  const { client, asked } = await page([['job', 'a', 'bill'], ['job', 'b', 'bill'], ['all', 'jobs']], 10)
  const invalidator = new QueryInvalidator(client, 1_000, isOfJob)

  for (let facts = 0; facts < 20; facts++) invalidator.add('a')
  await vi.advanceTimersByTimeAsync(300)

  expect(asked).toEqual({ 'job a bill': 2, 'job b bill': 1, 'all jobs': 2 })
})

it('limits the rate of expensive refetches', async () => {
  const { client, asked } = await page([['sums', 'costs'], ['job', 'a', 'attempts'], ['job', 'b', 'attempts']], 10)
  const invalidator = new QueryInvalidator(client, 5_000, isDear)

  for (let passed_ms = 0; passed_ms < 60_000; passed_ms += 100) {
    invalidator.add('a')
    await vi.advanceTimersByTimeAsync(100)
  }

  expect(asked['sums costs']).toBe(1 + 12)
  expect(asked['job a attempts']).toBe(1 + 12)
  expect(asked['job b attempts']).toBe(1)
})

it('refetches in-flight queries after they finish', async () => {
  const { client, asked, ended } = await page([['sums', 'costs']], 12_000)
  const invalidator = new QueryInvalidator(client, 5_000, isDear)
  invalidator.add('a')
  await vi.advanceTimersByTimeAsync(1_000)
  expect(asked['sums costs']).toBe(2)

  invalidator.add('a')
  await vi.advanceTimersByTimeAsync(60_000)

  expect(ended).toEqual([])
  expect(asked['sums costs']).toBe(3)
})

it('refetches fast queries while a slow one runs, then stops', async () => {
  const { client, asked } = await page([['all', 'jobs']], 10)
  const slow = { queryKey: ['all', 'found'], queryFn: () => new Promise((resolve) => setTimeout(resolve, 3_500, 'found')) }
  new QueryObserver(client, slow).subscribe(() => {})
  const invalidator = new QueryInvalidator(client, 1_000, isOfJob)

  invalidator.add('a')
  await vi.advanceTimersByTimeAsync(60_000)

  expect(asked['all jobs']).toBe(2)
})
