// Queries of plans: the plan of a job, and the forecast of a job file.

import { keepPreviousData, useQuery } from '@tanstack/react-query'
import type { Submission } from '../submit/commands'
import { get, transfer, withQuery } from './client'
import type { Query } from './queries'
import type { JobPlan, PlanChoice, PlanPreview } from './types'

/** Poll interval: a plan changes with events, but the time that is left always. */
const PLAN_MS = 30_000

/** The plan of a job with all its choices. */
export const usePlan = (id: string, live: boolean, enabled: boolean): Query<JobPlan> =>
  useQuery({
    queryKey: ['job', id, 'plan'],
    enabled,
    queryFn: async ({ signal }) => {
      const page = (before: number | null) => get<JobPlan>(withQuery(`/v1/jobs/${encodeURIComponent(id)}/plan`, { before }), signal)
      const plan = await page(null)
      const choices: PlanChoice[] = [...plan.choices]
      for (let before = plan.choices_next; before !== null; ) {
        const earlier = await page(before)
        choices.push(...earlier.choices)
        before = earlier.choices_next
      }
      return { ...plan, choices }
    },
    refetchInterval: live && PLAN_MS,
  })

export type PlanRequest = Submission & { work?: string }

/** The forecast of a job file; null while no forecast is wanted. */
export const usePlanPreview = (body: PlanRequest | null): Query<PlanPreview> =>
  useQuery({
    queryKey: ['plan', body],
    enabled: body !== null,
    queryFn: () => transfer<PlanPreview>('POST', '/v1/plans', body) as Promise<PlanPreview>,
    placeholderData: keepPreviousData,
    staleTime: PLAN_MS,
  })
