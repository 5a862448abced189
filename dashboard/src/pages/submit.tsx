// The submit page: a form and the job file side by side, a preview of the task, and its price.

import { keepPreviousData, useMutation, useQuery } from '@tanstack/react-query'
import { useRef, useState } from 'react'
import { useNavigate } from 'react-router'
import { newKey, ResponseError, send, transfer } from '../api/client'
import { useLaunchers, useProjects } from '../api/queries'
import type { Job, Rendered } from '../api/types'
import { CodeSection, type Code } from '../code/section'
import { many } from '../format'
import { Forecast } from '../submit/forecast'
import { diffLines } from '../submit/line-diff'
import { asCommand, asCurl, type Submission } from '../submit/commands'
import { FIELDS, parseJobFile, withValue, type Field } from '../submit/job-file'
import { GroupPrices, PriceNow } from '../submit/price'
import { CopyButton } from '../ui/copy-button'
import { Labelled } from '../ui/field'
import { Section, ErrorMessage } from '../ui/panel'
import { useSettled } from '../ui/settled'

/** Delay between typing and validation. A lower value sends a request per letter; a higher value delays the result. */
const TYPING_MS = 400
/** Storage key of the unsubmitted job file, for as long as the tab is open. */
const DRAFT = 'holdfast.draft'
/** Storage key of its uploaded code. */
const CODE = 'holdfast.draft.code'
const FIRST = 'name: hello\nresources:\n  infra: local\nrun: |\n  echo "hello from $(hostname)"\n'

const LAUNCHERS: Record<string, string> = { skypilot: 'SkyPilot', slurm: 'Slurm', local: 'local', simulated: 'simulated' }

export default function SubmitPage() {
  const go = useNavigate()
  const [file, setFile] = useState(() => sessionStorage.getItem(DRAFT) ?? FIRST)
  const [code, setCode] = useState(() => JSON.parse(sessionStorage.getItem(CODE) ?? 'null') as Code | null)
  const [project, setProject] = useState('')
  const [base_dir, setBaseDir] = useState('')
  const [force, setForce] = useState(false)
  const body: Submission = { task: file, ...(project && { project }), ...(base_dir && { base_dir }), ...(code && { code: code.id }), ...(force && { force }) }
  const settled = useSettled(body, TYPING_MS)
  const parsed = parseJobFile(file)
  // Prices follow the settled text, not every letter.
  const { values: priced, has_groups } = settled.task === file ? parsed : parseJobFile(settled.task)
  const rendered = useRendered(settled, has_groups)
  const key = useRef({ of: '', key: '' })
  const submit = useMutation({
    mutationFn: () => {
      const text = JSON.stringify(body)
      // A repeated request with the same body makes the same job.
      if (key.current.of !== text) key.current = { of: text, key: newKey() }
      return send<Job>('POST', '/v1/jobs', body, { 'Idempotency-Key': key.current.key })
    },
    onSuccess: (job) => {
      sessionStorage.removeItem(DRAFT)
      sessionStorage.removeItem(CODE)
      if (job) void go(`/jobs/${job.id}`)
    },
  })
  const change = (text: string) => {
    sessionStorage.setItem(DRAFT, text)
    submit.reset()
    setFile(text)
  }
  const upload = (uploaded: Code | null) => {
    sessionStorage.setItem(CODE, JSON.stringify(uploaded))
    setCode(uploaded)
    const workdir = FIELDS.find((field) => field.name === 'workdir')
    // The command line uploads the folder that the file names, so uploaded code sets `workdir`.
    const [from, to] = uploaded ? ['', '.'] : ['.', '']
    if (workdir && parsed.values.workdir === from) change(withValue(file, workdir, to))
    else submit.reset()
  }
  const flaws = rendered.error instanceof ResponseError ? rendered.error.flaws : []
  return (
    <>
      <title>Submit · Holdfast</title>
      <h1>Submit a job</h1>
      <div className="sides">
        <div className="stack">
          <CodeSection code={code} change={upload} />
          <Section title="Settings">
            <div className="form">
              {FIELDS.map((field) => (
                <FormField key={field.name} field={field} value={parsed.values[field.name]} is_disabled_by_error={parsed.flaw !== null} has_groups={parsed.has_groups}
                  flaw={flaws.find((one) => one.pointer === `#/${field.path.join('/')}`)?.message} change={(value) => change(withValue(file, field, value))} />
              ))}
              <Projects project={project} choose={setProject} />
              <Labelled label="Base directory for relative paths" hint="Absolute path on the service's machine. Needed only for relative paths in the file.">
                {(named) => <input {...named} value={base_dir} placeholder="/home/you/project" autoComplete="off" onChange={(event) => setBaseDir(event.target.value)} />}
              </Labelled>
            </div>
          </Section>
          {(parsed.has_plan || parsed.values.deadline) && <Forecast file={file} parsed={parsed} settled={settled} simulated={['local', 'simulated'].includes(rendered.data?.engine ?? '')} change={change} />}
          <Section title="Price">
            {has_groups ? <Estimate rendered={rendered} /> : <PriceNow accelerators={priced.accelerators ?? ''} infra={priced.infra ?? ''} nodes={Math.max(1, Number(priced.num_nodes) || 1)} />}
          </Section>
        </div>
        <div className="stack">
          <Section title="Job file">
            <textarea aria-label="Job file" value={file} spellCheck={false} rows={Math.max(14, file.split('\n').length + 1)} onChange={(event) => change(event.target.value)} />
            {parsed.flaw && <p className="note warn" role="alert">✕ Invalid YAML: {parsed.flaw}</p>}
          </Section>
          <Preview rendered={rendered} />
          <Section title="Submit">
            {submit.error && <ErrorMessage error={submit.error} means="Not submitted" />}
            <label><input type="checkbox" checked={force} onChange={(event) => setForce(event.target.checked)} /> {parsed.has_plan ? 'Submit even if no plan can keep the limits, or without checkpoints (progress is lost on preemption)' : 'Run on spot without checkpoints (progress is lost on preemption)'}</label>
            <div className="row">
              <button type="button" className="primary" disabled={submit.isPending} onClick={() => submit.mutate()}>
                {submit.isPending ? 'Submitting…' : 'Submit'}
              </button>
              <CopyButton title="Copy as command" text={asCommand(body)} />
              <CopyButton title="Copy as curl" text={asCurl(body, location.origin)} />
            </div>
          </Section>
        </div>
      </div>
    </>
  )
}

/** A preview, with prices where those of the form would not be those of the job. */
const useRendered = (body: Submission, prices: boolean) =>
  useQuery({
    queryKey: ['render', body, prices],
    queryFn: () => transfer<Rendered>('POST', '/v1/render', { ...body, ...(prices && { prices }) }),
    placeholderData: keepPreviousData,
    staleTime: Infinity,
  })

/** Prices of node groups, once the service accepts the file. */
function Estimate({ rendered: { data, error } }: { rendered: ReturnType<typeof useRendered> }) {
  if (error) return <p className="note">The prices of node groups follow when the file is valid.</p>
  return data?.estimate ? <GroupPrices estimate={data.estimate} /> : <p className="note" role="status">Loading prices…</p>
}

function Preview({ rendered }: { rendered: ReturnType<typeof useRendered> }) {
  const { data, error } = rendered
  const flaws = error instanceof ResponseError ? error.flaws : []
  // Older services send no list.
  const refused = error ? [] : (data?.refused ?? [])
  return (
    <Section title="Preview" aside={<span role="status" className="small">{error || refused.length > 0 ? '✕ Invalid' : data ? `✓ Valid. Launcher: ${LAUNCHERS[data.engine] ?? data.engine}` : 'Validating…'}</span>}>
      {error && flaws.length === 0 && <ErrorMessage error={error} retry={() => void rendered.refetch()} />}
      {flaws.length > 0 && (
        <ul className="flaws" aria-label="Errors">
          {flaws.map(({ pointer, message }) => <li key={pointer + message}><code>{pointer}</code> {message}</li>)}
        </ul>
      )}
      {refused.length > 0 && (
        <ul className="flaws" aria-label="Reasons for refusal">
          {refused.map((reason) => <li key={reason}>{reason}</li>)}
        </ul>
      )}
      {data && !error && data.notes.map((note) => <p key={note} className="note">{note}</p>)}
      {data && <Task text={data.task} />}
    </Section>
  )
}

/** The rendered task, with the lines of the last change marked. */
function Task({ text }: { text: string }) {
  const texts = useRef({ before: text, now: text })
  if (texts.current.now !== text) texts.current = { before: texts.current.now, now: text }
  const lines = diffLines(texts.current.before, text)
  const news = lines.filter((line) => line.is_new).length
  return (
    <>
      <p className="note" role="status">{news > 0 ? `${many(news, 'line')} changed, marked with +.` : 'Changed lines are marked with +.'}</p>
      <pre className="log task" tabIndex={0} role="region" aria-label="Rendered task">
        {lines.map((line, at) => <span key={at} className={line.is_new ? 'line new' : 'line'}>{line.is_new ? '+ ' : '  '}{line.text}</span>)}
      </pre>
    </>
  )
}

interface FormFieldProps {
  field: Field
  /** Undefined for a value that only the file can express. */
  value: string | undefined
  is_disabled_by_error: boolean
  has_groups: boolean
  flaw: string | undefined
  change: (value: string) => void
}

function FormField({ field, value, is_disabled_by_error, has_groups, flaw, change }: FormFieldProps) {
  const launchers = useLaunchers()
  const is_disabled = is_disabled_by_error || value === undefined
  const of = { value: value ?? '', disabled: is_disabled, 'aria-invalid': flaw !== undefined, autoComplete: 'off' }
  const places = field.name === 'infra' ? (launchers.data ?? []).filter((one) => one.configured).flatMap((one) => (one.engine === 'skypilot' ? (one.clouds ?? []) : [one.engine])) : []
  const hint = value === undefined && !is_disabled_by_error ? 'Set by several keys: change it in the file.' : (has_groups && field.hint_of_groups) || field.hint
  return (
    <Labelled label={field.label} hint={hint} flaw={flaw} wide={field.wide}>
      {(named) =>
        field.lines ? (
          <textarea rows={3} spellCheck={false} {...named} {...of} onChange={(event) => change(event.target.value)} />
        ) : (
          <>
            <input {...named} {...of} {...(places.length > 0 && { list: 'places' })} onChange={(event) => change(event.target.value)} />
            {places.length > 0 && <datalist id="places">{places.map((place) => <option key={place} value={place} />)}</datalist>}
          </>
        )
      }
    </Labelled>
  )
}

function Projects({ project, choose }: { project: string; choose: (project: string) => void }) {
  const { data } = useProjects()
  if ((data?.length ?? 0) < 2) return null
  return (
    <Labelled label="Project">
      {(named) => (
        <select {...named} value={project} onChange={(event) => choose(event.target.value)}>
          <option value="">as in the file</option>
          {data?.filter((one) => one.archived_at === null).map(({ name }) => <option key={name}>{name}</option>)}
        </select>
      )}
    </Labelled>
  )
}
