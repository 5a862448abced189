// What can be done to a job. Whether it can, the service says.

import { useRef } from 'react'
import { useNavigate } from 'react-router'
import { newKey, send } from '../../api/client'
import type { Job } from '../../api/types'
import { count } from '../../format'
import { Action } from '../../ui/action'
import { Field } from '../../ui/field'
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
    </div>
  )
}
