// Actions on a job that have a dialog on its page, which `?action=NAME` opens.

import type { Can, Job } from './api/types'

export const ACTIONS = ['pause', 'resume', 'resize', 'limits', 'preempt', 'retry', 'clone', 'cancel'] as const
export type ActionName = (typeof ACTIONS)[number]

/** Whether the user may take an action now, and otherwise why not; undefined if the service does not know the action. */
export function permission(job: Job, action: ActionName): Can | undefined {
  return action === 'resize' ? resizable(job) : job.can[action]
}

/** Whether a resume can change the nodes: those of groups are in the job file only. */
function resizable({ id, can: { resume }, groups }: Job): Can | undefined {
  // Older services do not send groups.
  if (!resume?.allowed || !groups?.length) return resume
  return { allowed: false, reason: `its node groups have nodes of their own; change them in the job file, and submit it with holdfast.checkpoint.from: ${id}` }
}
