// The resume of a paused job on other nodes. It is sent only after the service has shown what it changes.

import { useId, useState, type FormEvent } from 'react'
import { ResponseError, send } from '../../api/client'
import { useLaunchers, useResumePreview, type Query } from '../../api/queries'
import type { Job, ResumeNodes, ResumePreview, ResumeRequest } from '../../api/types'
import { count, money } from '../../format'
import { permission } from '../../job-actions'
import { AlternativesTable, Unkept } from '../../plans/alternatives'
import { Action } from '../../ui/action'
import { Choice, Field, Labelled } from '../../ui/field'
import { ErrorMessage } from '../../ui/panel'
import { useSettled } from '../../ui/settled'
import { changesOf, LimitFields } from './limits'

/** Delay between typing and the preview. A lower value sends a request per letter; a higher value delays the result. */
const TYPING_MS = 400
/** Ways to buy nodes, as the form names them. */
const CAPACITIES = ['as now', 'spot', 'on demand'] as const
const NODES = /^(\d{1,9})(?:\s*-\s*(\d{1,9}))?$/

export function ResizeAction({ job }: { job: Job }) {
  /** What the form asks for; null while the dialog is closed. */
  const [asked, setAsked] = useState<ResumeRequest | null>(null)
  /** Why the form cannot be read; empty if it can. */
  const [flaw, setFlaw] = useState('')
  const settled = useSettled(asked, TYPING_MS)
  const preview = useResumePreview(job.id, job.can.resume?.allowed && asked ? settled : null)
  const is_current = JSON.stringify(settled) === JSON.stringify(asked) && !preview.isPlaceholderData && !preview.isFetching
  const { data, error } = preview
  const is_ready = is_current && !flaw && !error && data !== undefined && data.changes.length > 0 && data.refused.length === 0
  const change = (event: FormEvent<HTMLDivElement>) => {
    const { form } = event.target as HTMLInputElement
    if (!form) return
    try {
      setAsked(requestOf(new FormData(form)))
      setFlaw('')
    } catch (error) {
      setFlaw((error as Error).message)
    }
  }
  const show = (is_open: boolean) => {
    setAsked(is_open ? {} : null)
    setFlaw('')
  }
  return (
    <Action title="Resume on other nodes" confirm="Resume on these nodes" opens="resize" asks={`Resume ${job.name} on other nodes?`} can={permission(job, 'resize')} ready={is_ready} wide
      onShow={show} act={(form) => send<Job>('POST', `/v1/jobs/${job.id}/resume`, requestOf(form))}>
      <p>The job continues from its newest checkpoint, with the nodes that you enter. Empty fields stay as they are.</p>
      <div className="dialog-body" onChange={change}>
        <NodeFields now={data?.before} flaw={flaw} />
        <details>
          <summary>Change limits</summary>
          <div className="dialog-body"><LimitFields limits={job.limits} /></div>
        </details>
        <label><input type="checkbox" name="force" /> Accept risks as for a submission, and a folder as the store that the new nodes share</label>
      </div>
      {flaw ? <p role="status"><strong>✕ Not possible as entered</strong></p> : <Outcome query={preview} is_current={is_current} is_planned={job.is_planned ?? false} />}
    </Action>
  )
}

function NodeFields({ now, flaw }: { now: ResumeNodes | undefined; flaw: string }) {
  const places = useId()
  const launchers = useLaunchers().data ?? []
  const known = launchers.filter(({ configured }) => configured).flatMap(({ engine, clouds }) => (engine === 'skypilot' ? (clouds ?? []) : [engine]))
  return (
    <div className="form">
      <Labelled label="Nodes" hint={<>A number, or a range such as 2-8.{now && ` Now ${nodesText(now)}.`}</>} flaw={flaw}>
        {(named) => <input {...named} name="nodes" autoComplete="off" aria-invalid={flaw !== ''} />}
      </Labelled>
      <Field name="gpus" label="Accelerators of each node" hint={<>Such as A100:8.{now && ` Now ${now.gpus}.`}</>} />
      <Labelled label="Place or launcher" hint={<>Such as aws/us-east-1, slurm/gpu or local.{now && ` Now ${now.place}.`}</>}>
        {(named) => (
          <>
            <input {...named} name="infra" list={places} autoComplete="off" />
            <datalist id={places}>{known.map((place) => <option key={place} value={place} />)}</datalist>
          </>
        )}
      </Labelled>
      <Choice name="capacity" label="Spot or on demand" options={CAPACITIES} hint={now ? `Now ${capacityText(now)}.` : 'How nodes are bought.'} />
    </div>
  )
}

/** The request of a form: empty fields are left out. Throws an error if the number of nodes is none. */
function requestOf(form: FormData): ResumeRequest {
  const text = (name: string) => String(form.get(name) ?? '').trim()
  const [nodes, gpus, infra, capacity, limits] = [text('nodes'), text('gpus'), text('infra'), text('capacity'), changesOf(form)]
  return {
    ...(nodes && { nodes: parsedNodes(nodes) }),
    ...(gpus && { gpus }),
    ...(infra && { infra }),
    ...(capacity && capacity !== CAPACITIES[0] && { spot: capacity === 'spot' }),
    ...(form.has('force') && { force: true }),
    ...(Object.keys(limits).length > 0 && { limits }),
  }
}

function parsedNodes(text: string): number | { min: number; max: number } {
  const [, low, high] = NODES.exec(text) ?? []
  if (!low) throw new Error(`“${text}” is not a number of nodes; write 4, or a range such as 2-8.`)
  return high ? { min: Number(low), max: Number(high) } : Number(low)
}

const nodesText = ({ nodes, min_nodes }: ResumeNodes): string => (min_nodes === null ? count(nodes) : `${count(min_nodes)}-${count(nodes)}`)
const capacityText = ({ capacity }: ResumeNodes): string => (capacity === 'own' ? 'own nodes, not rented' : capacity.replace('-', ' '))

interface OutcomeProps {
  query: Query<ResumePreview>
  /** Whether it is that of the form as it stands. */
  is_current: boolean
  is_planned: boolean
}

/** What the service says about the request. */
function Outcome({ query: { data, error, refetch }, is_current, is_planned }: OutcomeProps) {
  const flaws = error instanceof ResponseError ? error.flaws : []
  return (
    <section className="preview" aria-label="Preview" aria-busy={!is_current}>
      <p role="status"><strong>{is_current ? verdict(data, error) : 'Checking…'}</strong></p>
      {error && flaws.length === 0 && <ErrorMessage error={error} means="No preview" retry={() => void refetch()} />}
      {flaws.length > 0 && <Reasons label="Errors" reasons={flaws.map(({ pointer, message }) => `${pointer} ${message}`)} />}
      {data && !error && (
        <div className={is_current ? '' : 'quiet'}>
          {data.refused.length > 0 && <Reasons label="Reasons for refusal" reasons={data.refused} />}
          <Comparison preview={data} />
          {[data.batch, data.checkpoints].filter(Boolean).map((sentence) => <p key={sentence}>{sentence}</p>)}
          {data.notes.map((note) => <p key={note} className="note">{note}</p>)}
          <Forecast preview={data} is_planned={is_planned} />
        </div>
      )}
    </section>
  )
}

/** When the job would end on the new nodes, and at which cost. */
function Forecast({ preview: { forecast, forecast_note, after }, is_planned }: { preview: ResumePreview; is_planned: boolean }) {
  // Older services send neither.
  if (!forecast) return forecast_note ? <p className="note">{sentenceOf(forecast_note)}</p> : null
  return (
    <>
      <p><strong>Forecast: {forecast.sentence}.</strong></p>
      {forecast.issues.length > 0 && <Unkept sentences={forecast.issues} />}
      <AlternativesTable forecast={forecast} simulated={after.engine === 'local'} is_planned={is_planned} />
      {forecast.notes.map((note) => <p key={note} className="note">{note}</p>)}
    </>
  )
}

const sentenceOf = (note: string): string => `${note.slice(0, 1).toUpperCase()}${note.slice(1)}.`

function verdict(preview: ResumePreview | undefined, error: Error | null): string {
  if (error) return '✕ Not possible as entered'
  if (!preview) return 'Checking…'
  if (preview.refused.length > 0) return '✕ Would be refused'
  return preview.changes.length > 0 ? `✓ Changes: ${preview.changes.join(', ')}` : 'No change yet: enter what shall differ.'
}

const Reasons = ({ label, reasons }: { label: string; reasons: string[] }) => (
  <ul className="flaws" aria-label={label}>
    {reasons.map((reason) => <li key={reason}>{reason}</li>)}
  </ul>
)

function Comparison({ preview: { before, after, ranks_before, ranks_after } }: { preview: ResumePreview }) {
  return (
    <table className="changes">
      <caption className="visually-hidden">Nodes now and after the resume</caption>
      <thead><tr><td /><th scope="col">Now</th><th scope="col">Then</th></tr></thead>
      <tbody>
        <Change title="Nodes" now={nodesText(before)} then={nodesText(after)} />
        <Change title="GPUs" now={before.gpus} then={after.gpus} />
        <Change title="Place" now={before.place} then={after.place} />
        <Change title="Bought" now={capacityText(before)} then={capacityText(after)} />
        <Change title="Price per hour" now={hourly(before)} then={hourly(after)} />
        <Change title="Ranks" now={ranksText(ranks_before)} then={ranksText(ranks_after)} />
      </tbody>
    </table>
  )
}

/** A row of the comparison; what differs is bold. */
const Change = ({ title, now, then }: { title: string; now: string; then: string }) => (
  <tr><th scope="row">{title}</th><td>{now}</td><td>{now === then ? then : <strong>{then}</strong>}</td></tr>
)

const hourly = ({ capacity, micros_per_hour }: ResumeNodes): string =>
  micros_per_hour !== null ? money(micros_per_hour) : capacity === 'own' ? 'not rented' : 'unknown'

const ranksText = (ranks: number | null): string => (ranks === null ? 'unknown' : count(ranks))
