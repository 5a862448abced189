// What a copy of a job is to have instead: another name, other limits, other values, and its secrets, which nobody copies.

import { useFacts } from '../../api/queries'
import type { Fact, Job } from '../../api/types'
import { Field, Lines } from '../../ui/field'
import { changesOf, LimitFields } from './limits'

/** Before the name of a variable, so that none is taken for a limit. */
const ENV = 'env.'
const SECRET = 'secret.'

interface Submitted {
  envs?: Record<string, string>
  /** Their names: values are in no fact. */
  secrets?: string[]
}

const submittedOf = (facts: Fact[] | undefined): Submitted => (facts?.[0]?.body.spec as Submitted | undefined) ?? {}

/** How a job of which one asks so much was submitted: its variables and the names of its secrets. */
export const useSubmitted = (job: Job): Submitted => submittedOf(useFacts(job.id).data)

export function CopyFields({ job, submitted: { envs = {}, secrets = [] } }: { job: Job; submitted: Submitted }) {
  const names = Object.keys(envs)
  return (
    <>
      <Field name="name" label="Name" hint="Empty: the same." />
      {secrets.map((name) => (
        <Field key={name} name={SECRET + name} label={`Secret ${name}`} type="password" autoComplete="new-password" required hint="Values of secrets are not copied: say it once more. It is sealed, and shown nowhere." />
      ))}
      <details>
        <summary>Other limits</summary>
        <div className="asked"><LimitFields limits={job.limits} /></div>
      </details>
      <details>
        <summary>Other values of the environment</summary>
        <div className="asked">
          {names.map((name) => <Lines key={name} name={ENV + name} label={name} value={envs[name] ?? ''} />)}
          <Lines name="more" label={names.length > 0 ? 'More variables' : 'Variables'} hint="NAME=value, one in a line." />
        </div>
      </details>
      <label><input type="checkbox" name="force" /> Accept that it may lose its work: spot nodes without checkpoints</label>
    </>
  )
}

/** The request of a copy: what is as it was is left out. */
export function copyOf(form: FormData, { envs = {}, secrets = [] }: Submitted) {
  const text = (name: string) => String(form.get(name) ?? '')
  const env: Record<string, string> = {}
  for (const [name, value] of Object.entries(envs)) {
    const said = text(ENV + name).replaceAll('\r\n', '\n')
    if (said !== value) env[name] = said
  }
  for (const line of text('more').split(/\r?\n/).filter((line) => line.trim())) {
    const [name = '', ...value] = line.split('=')
    if (value.length === 0) throw new Error(`“${line.trim()}” gives no variable a value; write NAME=value.`)
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
