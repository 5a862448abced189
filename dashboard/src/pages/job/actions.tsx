// Actions on a job. The service decides which are allowed.

import { useRef } from 'react'
import { useNavigate } from 'react-router'
import { newKey, send } from '../../api/client'
import type { Job, Removal } from '../../api/types'
import { count } from '../../format'
import { Action } from '../../ui/action'
import { Choice, Field } from '../../ui/field'
import { ENDED_STATES } from '../../phases'
import { CopyFields, copyOf, useSubmitted } from './clone'
import { changesOf, LimitFields, changeLimits } from './limits'
import { ResizeAction } from './resize'

export function Actions({ job }: { job: Job }) {
  const go = useNavigate()
  const submitted = useSubmitted(job)
  /** The last unanswered clone or retry request. */
  const asked = useRef({ of: '', key: '' })
  const path = (verb: string) => `/v1/jobs/${job.id}/${verb}`
  const post = (verb: string) => (body: unknown) => send<Job>('POST', path(verb), body)
  const reasoned = (verb: string) => (form: FormData) => {
    const reason = String(form.get('reason') ?? '').trim()
    return post(verb)(reason ? { reason } : {})
  }
  // Older services do not send them.
  const groups = (job.groups ?? []).map(({ name }) => name)
  const reason = <Field name="reason" label="Reason" hint="Recorded in the events. Optional." />
  const preempt = (form: FormData) => {
    const seconds = String(form.get('notice_s') ?? '').trim()
    // Older services do not know the field.
    const force = form.has('force') ? { force: true } : {}
    const group = form.has('group') ? { group: String(form.get('group')) } : {}
    return post('preempt')({ node: null, notice_s: seconds === '' ? null : Number(seconds), ...force, ...group })
  }
  const again = (verb: 'clone' | 'retry') => async (form: FormData) => {
    const body = copyOf(form, submitted)
    const of = `${verb} ${JSON.stringify(body)}`
    // After a lost answer, the same key makes the same job; after an answer, a new key makes a new one.
    if (asked.current.of !== of) asked.current = { of, key: newKey() }
    const made = await send<Job>('POST', path(verb), body, { 'Idempotency-Key': asked.current.key })
    asked.current = { of: '', key: '' }
    if (made) void go(`/jobs/${made.id}`)
  }
  const resume = (form: FormData) => post('resume')({ limits: changesOf(form) })
  const limits = (form: FormData) => changeLimits(job.id, form)
  const remove = async (form: FormData) => {
    const removal = await send<Removal>('DELETE', `/v1/jobs/${job.id}${form.has('checkpoints') ? '?checkpoints=true' : ''}`)
    if (removal) void go('/', { state: { removed: removedWords(job.name, removal) } })
  }
  return (
    <div className="row actions" role="group" aria-label="Actions">
      <Action title="Pause" opens="pause" asks={`Pause ${job.name}?`} can={job.can.pause} act={reasoned('pause')}>
        <p>The job saves a checkpoint and releases its nodes. Resume continues it.</p>
        {reason}
      </Action>
      <Action title="Resume" opens="resume" asks={`Resume ${job.name}?`} can={job.can.resume} act={resume}>
        <p>The job continues from its newest checkpoint. If a limit paused it, raise that limit first.</p>
        <LimitFields limits={job.limits} />
      </Action>
      <ResizeAction job={job} />
      <Action title="Limits" opens="limits" asks={`Limits of ${job.name}`} can={job.can.limits} act={limits}>
        <LimitFields limits={job.limits} />
      </Action>
      <Action title="Preempt" opens="preempt" asks={`Preempt one ${groups.length > 1 ? 'group' : 'node'} of ${job.name}?`} can={job.can.preempt} act={preempt}>
        <p>Simulates a spot preemption, to check that the job recovers. It is recorded as a drill.</p>
        {groups.length > 1 && <Choice name="group" label="Node group" value={groups.at(-1) ?? ''} options={groups} hint="All its nodes are lost." />}
        <Field name="notice_s" label="Notice (seconds)" type="number" value={30} hint="Empty: no notice." />
        <label><input type="checkbox" name="force" /> Accept the loss of steps that are not saved</label>
      </Action>
      <Action title="Retry" opens="retry" asks={`Retry ${job.name}?`} can={job.can.retry} act={again('retry')}>
        <p>Submits a new job with the same file and limits, starting from step {count(job.last_checkpoint_step ?? 0)}.</p>
        <CopyFields job={job} submitted={submitted} />
      </Action>
      <Action title="Clone" opens="clone" asks={`Clone ${job.name}?`} can={job.can.clone} act={again('clone')}>
        <p>Submits a new job with the same file and limits, from the beginning.</p>
        <CopyFields job={job} submitted={submitted} />
      </Action>
      <Action title="Cancel" opens="cancel" asks={`Cancel ${job.name}?`} can={job.can.cancel} danger confirm="Cancel job" back="Keep running" act={reasoned('cancel')}>
        <p>Nodes are released; checkpoints are kept.</p>
        {reason}
      </Action>
      {/* Hidden without the permission: removal is not part of a job's life cycle. */}
      {ENDED_STATES.includes(job.state) && job.can.remove?.allowed && (
        <Action title="Remove" asks={`Remove ${job.name} permanently?`} can={job.can.remove} danger act={remove}>
          <p>This cannot be undone. The job's page, events, metrics, logs and launch files are deleted.</p>
          <p>Its cost stays in totals, budgets and preemption statistics; its removal is recorded in the audit log.</p>
          {job.tidying && (
            <>
              <p>Its checkpoints stay in the store unless you select:</p>
              <label><input type="checkbox" name="checkpoints" /> Delete its checkpoints, unless an active job needs them to resume</label>
            </>
          )}
        </Action>
      )}
    </div>
  )
}

/** The result of a removal, for the fleet page. */
function removedWords(name: string, { job_id, checkpoints, removes_checkpoints, trouble }: Removal): string {
  const store = checkpoints === null ? '' : removes_checkpoints ? `; its checkpoints in ${checkpoints} are being deleted` : `; its checkpoints stay in ${checkpoints}`
  return `Job ${name} (${job_id}) was removed${store}.${trouble ? ` Some files remain: ${trouble}` : ''}`
}
