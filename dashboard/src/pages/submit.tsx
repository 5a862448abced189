// A job on its way: a form and its file side by side, what would be launched, and what it would cost.

import { keepPreviousData, useMutation, useQuery } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import { useNavigate } from 'react-router'
import { newKey, Refused, send, transfer } from '../api/client'
import { useLaunchers, useProjects } from '../api/queries'
import type { Job, Rendered } from '../api/types'
import { CodeSection, type Code } from '../code/section'
import { many } from '../format'
import { marked } from '../submit/changes'
import { asCommand, asCurl, type Asked } from '../submit/commands'
import { FIELDS, understand, written, type Field } from '../submit/job-file'
import { PriceNow } from '../submit/price'
import { Copied } from '../ui/copied'
import { Labelled } from '../ui/field'
import { Section, Trouble } from '../ui/panel'

/** From the last letter until the service is asked. Shorter: a request a letter; longer: people wait. */
const TYPING_MS = 400
/** Where a file that is not submitted yet is kept, for as long as the tab is open. */
const DRAFT = 'holdfast.draft'
/** The same for its code. */
const CODE = 'holdfast.draft.code'
const FIRST = 'name: hello\nresources:\n  infra: local\nrun: |\n  echo "hello from $(hostname)"\n'

export default function SubmitPage() {
  const go = useNavigate()
  const [file, setFile] = useState(() => sessionStorage.getItem(DRAFT) ?? FIRST)
  const [code, setCode] = useState(() => JSON.parse(sessionStorage.getItem(CODE) ?? 'null') as Code | null)
  const [project, setProject] = useState('')
  const [base_dir, setBaseDir] = useState('')
  const [force, setForce] = useState(false)
  const body: Asked = { task: file, ...(project && { project }), ...(base_dir && { base_dir }), ...(code && { code: code.id }), ...(force && { force }) }
  const settled = useSettled(body)
  const understood = understand(file)
  // Prices of words that are still typed are nobody's concern.
  const { values: priced } = settled.task === file ? understood : understand(settled.task)
  const rendered = useRendered(settled)
  const key = useRef({ of: '', key: '' })
  const submit = useMutation({
    mutationFn: () => {
      const text = JSON.stringify(body)
      // The same request again is the same job, however often the button is pressed.
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
    // The command line uploads the folder that the file names, so the file names one while there is code.
    const [from, to] = uploaded ? ['', '.'] : ['.', '']
    if (workdir && understood.values.workdir === from) change(written(file, workdir, to))
    else submit.reset()
  }
  const flaws = rendered.error instanceof Refused ? rendered.error.flaws : []
  return (
    <>
      <title>Submit · Holdfast</title>
      <h1>Submit a job</h1>
      <div className="sides">
        <div className="stack">
          <CodeSection code={code} change={upload} />
          <Section title="What it is to be">
            <div className="form">
              {FIELDS.map((field) => (
                <FormField key={field.name} field={field} value={understood.values[field.name]} is_off={understood.flaw !== null}
                  flaw={flaws.find((one) => one.pointer === `#/${field.path.join('/')}`)?.message} change={(value) => change(written(file, field, value))} />
              ))}
              <Projects project={project} choose={setProject} />
              <Labelled label="Folder that relative paths are in" hint="Absolute, on the machine of the service. Only where the file has relative paths.">
                {(named) => <input {...named} value={base_dir} placeholder="/home/you/project" autoComplete="off" onChange={(event) => setBaseDir(event.target.value)} />}
              </Labelled>
            </div>
          </Section>
          <Section title="What it costs">
            <PriceNow accelerators={priced.accelerators ?? ''} infra={priced.infra ?? ''} nodes={Math.max(1, Number(priced.num_nodes) || 1)} />
          </Section>
        </div>
        <div className="stack">
          <Section title="The job file">
            <textarea aria-label="Job file" value={file} spellCheck={false} rows={Math.max(14, file.split('\n').length + 1)} onChange={(event) => change(event.target.value)} />
            {understood.flaw && <p className="note warn" role="alert">✕ Not YAML yet: {understood.flaw}</p>}
          </Section>
          <Checked rendered={rendered} />
          <Section title="Submit it">
            {submit.error && <Trouble error={submit.error} means="This was not done." />}
            <label><input type="checkbox" checked={force} onChange={(event) => setForce(event.target.checked)} /> Accept that it may lose its work: spot nodes without checkpoints</label>
            <div className="row">
              <button type="button" className="primary" disabled={submit.isPending} onClick={() => submit.mutate()}>
                {submit.isPending ? 'Submitting…' : 'Submit'}
              </button>
              <Copied title="Copy as command" text={asCommand(body)} />
              <Copied title="Copy as curl" text={asCurl(body, location.origin)} />
            </div>
          </Section>
        </div>
      </div>
    </>
  )
}

function useSettled(body: Asked): Asked {
  const text = JSON.stringify(body)
  const [settled, setSettled] = useState(text)
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(text), TYPING_MS)
    return () => window.clearTimeout(timer)
  }, [text])
  return JSON.parse(settled) as Asked
}

const useRendered = (body: Asked) =>
  useQuery({
    queryKey: ['render', body],
    queryFn: () => transfer<Rendered>('POST', '/v1/render', body),
    placeholderData: keepPreviousData,
    staleTime: Infinity,
  })

function Checked({ rendered }: { rendered: ReturnType<typeof useRendered> }) {
  const { data, error } = rendered
  const flaws = error instanceof Refused ? error.flaws : []
  // A service of an older version sends no list.
  const refused = error ? [] : (data?.refused ?? [])
  return (
    <Section title="What would be launched" aside={<span role="status" className="small">{error || refused.length > 0 ? '✕ It would be refused' : data ? `✓ It would go to ${data.engine}` : 'Asking…'}</span>}>
      {error && flaws.length === 0 && <Trouble error={error} retry={() => void rendered.refetch()} />}
      {flaws.length > 0 && (
        <ul className="flaws" aria-label="What is wrong">
          {flaws.map(({ pointer, message }) => <li key={pointer + message}><code>{pointer}</code> {message}</li>)}
        </ul>
      )}
      {refused.length > 0 && (
        <ul className="flaws" aria-label="Why submit refuses it">
          {refused.map((reason) => <li key={reason}>{reason}</li>)}
        </ul>
      )}
      {data && !error && data.notes.map((note) => <p key={note} className="note">{note}</p>)}
      {data && <Task text={data.task} />}
    </Section>
  )
}

/** The task, with the lines marked that the last change has made. */
function Task({ text }: { text: string }) {
  const texts = useRef({ before: text, now: text })
  if (texts.current.now !== text) texts.current = { before: texts.current.now, now: text }
  const lines = marked(texts.current.before, text)
  const news = lines.filter((line) => line.is_new).length
  return (
    <>
      <p className="note" role="status">{news > 0 ? `${many(news, 'line')} of it changed, marked with +.` : 'Lines that a change makes are marked with +.'}</p>
      <pre className="log task" tabIndex={0} role="region" aria-label="Rendered task">
        {lines.map((line, at) => <span key={at} className={line.is_new ? 'line new' : 'line'}>{line.is_new ? '+ ' : '  '}{line.text}</span>)}
      </pre>
    </>
  )
}

interface FormFieldProps {
  field: Field
  /** Undefined where only the file can say it. */
  value: string | undefined
  is_off: boolean
  flaw: string | undefined
  change: (value: string) => void
}

function FormField({ field, value, is_off, flaw, change }: FormFieldProps) {
  const launchers = useLaunchers()
  const is_closed = is_off || value === undefined
  const of = { value: value ?? '', disabled: is_closed, 'aria-invalid': flaw !== undefined, autoComplete: 'off' }
  const places = field.name === 'infra' ? (launchers.data ?? []).filter((one) => one.configured).flatMap((one) => (one.engine === 'skypilot' ? (one.clouds ?? []) : [one.engine])) : []
  const hint = value === undefined && !is_off ? 'The file says it in more than one word: change it there.' : field.hint
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
          <option value="">as the file says</option>
          {data?.filter((one) => one.archived_at === null).map(({ name }) => <option key={name}>{name}</option>)}
        </select>
      )}
    </Labelled>
  )
}
