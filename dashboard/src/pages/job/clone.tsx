// The form of a clone or retry: name, limits, environment and secrets, which are not copied.

import { useEvents } from '../../api/queries'
import type { JobEvent, Job } from '../../api/types'
import { Field, Lines } from '../../ui/field'
import { changesOf, LimitFields } from './limits'

/** Prefix of variable names in the form, so that none collides with a limit. */
const ENV = 'env.'
const SECRET = 'secret.'

interface Submitted {
  envs?: Record<string, string>
  /** Names only: events hold no secret values. */
  secrets?: string[]
}

const submittedOf = (events: JobEvent[] | undefined): Submitted => (events?.[0]?.body.spec as Submitted | undefined) ?? {}

/** Variables and secret names of a job's submission. */
export const useSubmitted = (job: Job): Submitted => submittedOf(useEvents(job.id).data)

export function CopyFields({ job, submitted: { envs = {}, secrets = [] } }: { job: Job; submitted: Submitted }) {
  const names = Object.keys(envs)
  return (
    <>
      <Field name="name" label="Name" hint="Empty: same name." />
      {secrets.map((name) => (
        <Field key={name} name={SECRET + name} label={`Secret ${name}`} type="password" autoComplete="new-password" required hint="Secret values are not copied: enter it again. It is stored encrypted." />
      ))}
      <details>
        <summary>Change limits</summary>
        <div className="dialog-body"><LimitFields limits={job.limits} /></div>
      </details>
      <details>
        <summary>Change environment variables</summary>
        <div className="dialog-body">
          {names.map((name) => <Lines key={name} name={ENV + name} label={name} value={envs[name] ?? ''} />)}
          <Lines name="more" label={names.length > 0 ? 'More variables' : 'Variables'} hint="NAME=value, one per line." />
        </div>
      </details>
      <label><input type="checkbox" name="force" /> Run on spot without checkpoints (progress is lost on preemption)</label>
    </>
  )
}

/** The request body: unchanged values are left out. */
export function copyOf(form: FormData, { envs = {}, secrets = [] }: Submitted) {
  const text = (name: string) => String(form.get(name) ?? '')
  const env: Record<string, string> = {}
  for (const [name, value] of Object.entries(envs)) {
    const entered = text(ENV + name).replaceAll('\r\n', '\n')
    if (entered !== value) env[name] = entered
  }
  for (const line of text('more').split(/\r?\n/).filter((line) => line.trim())) {
    const [name = '', ...value] = line.split('=')
    if (value.length === 0) throw new Error(`“${line.trim()}” has no value; write NAME=value.`)
    env[name.trim()] = value.join('=')
  }
  const changes = changesOf(form)
  return {
    ...(text('name').trim() && { name: text('name').trim() }),
    ...(Object.keys(env).length > 0 && { env }),
    ...(secrets.length > 0 && { secrets: Object.fromEntries(secrets.map((name) => [name, text(SECRET + name)])) }),
    ...(Object.keys(changes).length > 0 && { limits: changes }),
    ...(form.has('force') && { force: true }),
  }
}
