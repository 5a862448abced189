// What can be done to a job. Whether it can, the service says.

import { useRef } from 'react'
import { useNavigate } from 'react-router'
import { newKey, send } from '../../api/client'
import type { Job, Removal } from '../../api/types'
import { count } from '../../format'
import { Action } from '../../ui/action'
import { Field } from '../../ui/field'
import { OVER } from '../../vocabulary'
import { CopyFields, copyOf, useSubmitted } from './copy'
import { changesOf, LimitFields, relimit } from './limits'

export function Actions({ job }: { job: Job }) {
  const go = useNavigate()
  const submitted = useSubmitted(job)
  /** Which other job was asked for last, as long as no answer has come. */
  const asked = useRef({ of: '', key: '' })
  const path = (verb: string) => `/v1/jobs/${job.id}/${verb}`
  const post = (verb: string) => (body: unknown) => send<Job>('POST', path(verb), body)
  const reasoned = (verb: string) => (form: FormData) => {
    const reason = String(form.get('reason') ?? '').trim()
    return post(verb)(reason ? { reason } : {})
  }
  const reason = <Field name="reason" label="Why" hint="Kept in its events. May be empty." />
  const preempt = (form: FormData) => {
    const seconds = String(form.get('notice_s') ?? '').trim()
    return post('preempt')({ node: null, notice_s: seconds === '' ? null : Number(seconds) })
  }
  const again = (verb: 'clone' | 'retry') => async (form: FormData) => {
    const body = copyOf(form, submitted)
    const of = `${verb} ${JSON.stringify(body)}`
    // Where an answer was lost, the same request again is the same job; after an answer it is another one.
    if (asked.current.of !== of) asked.current = { of, key: newKey() }
    const made = await send<Job>('POST', path(verb), body, { 'Idempotency-Key': asked.current.key })
    asked.current = { of: '', key: '' }
    if (made) void go(`/jobs/${made.id}`)
  }
  const resume = (form: FormData) => post('resume')({ limits: changesOf(form) })
  const limits = (form: FormData) => relimit(job.id, form)
  const remove = async (form: FormData) => {
    const removal = await send<Removal>('DELETE', `/v1/jobs/${job.id}${form.has('checkpoints') ? '?checkpoints=true' : ''}`)
    if (removal) void go('/', { state: { removed: removedWords(job.name, removal) } })
  }
  return (
    <div className="row actions" role="group" aria-label="Actions">
      <Action title="Pause" asks={`Pause ${job.name}?`} can={job.can.pause} act={reasoned('pause')}>
        <p>It saves its work and gives its nodes back. Resume takes it up again.</p>
        {reason}
      </Action>
      <Action title="Resume" asks={`Resume ${job.name}?`} can={job.can.resume} act={resume}>
        <p>It goes on from its newest checkpoint. Where a limit has paused it, raise that first.</p>
        <LimitFields limits={job.limits} />
      </Action>
      <Action title="Limits" asks={`Limits of ${job.name}`} can={job.can.limits} act={limits}>
        <LimitFields limits={job.limits} />
      </Action>
      <Action title="Preempt" asks={`Take a node of ${job.name}?`} can={job.can.preempt} act={preempt}>
        <p>As a spot market would, to see the job come back.</p>
        <Field name="notice_s" label="Notice in seconds" type="number" value={30} hint="Empty: without notice." />
      </Action>
      <Action title="Retry" asks={`Retry ${job.name}?`} can={job.can.retry} act={again('retry')}>
        <p>A new job with the same file and limits, which goes on from step {count(job.last_checkpoint_step ?? 0)}.</p>
        <CopyFields job={job} submitted={submitted} />
      </Action>
      <Action title="Clone" asks={`Submit ${job.name} once more?`} can={job.can.clone} act={again('clone')}>
        <p>With the same file and limits, from where it began.</p>
        <CopyFields job={job} submitted={submitted} />
      </Action>
      <Action title="Cancel" asks={`Cancel ${job.name}?`} can={job.can.cancel} danger act={reasoned('cancel')}>
        <p>Its nodes go. Its checkpoints stay as they are.</p>
        {reason}
      </Action>
      {/* Only for those who may: it is no step in the life of a job. */}
      {OVER.includes(job.state) && job.can.remove?.allowed && (
        <Action title="Remove" asks={`Remove ${job.name} for good?`} can={job.can.remove} danger act={remove}>
          <p>This cannot be undone. Its page, events, metrics, logs and files of launches go.</p>
          <p>What it cost stays in all sums, budgets and preemption statistics, and its removal in the audit log.</p>
          {job.tidying && (
            <>
              <p>Its checkpoints stay in the store, unless you tick this.</p>
              <label><input type="checkbox" name="checkpoints" /> Remove its checkpoints as well, unless a live job needs them to resume</label>
            </>
          )}
        </Action>
      )}
    </div>
  )
}

/** What became of a removed job and its checkpoints. */
function removedWords(name: string, { job_id, checkpoints, removes_checkpoints, trouble }: Removal): string {
  const store = checkpoints === null ? '' : removes_checkpoints ? `; its checkpoints in ${checkpoints} are being removed` : `; its checkpoints stay in ${checkpoints}`
  return `Job ${name} (${job_id}) is removed${store}.${trouble ? ` Files are left: ${trouble}` : ''}`
}
