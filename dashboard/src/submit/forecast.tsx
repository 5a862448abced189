// The forecast of a job file, with sliders for its deadline and budget: the plan, spot nodes alone, and on-demand nodes alone.

import { useId, useRef, useState } from 'react'
import { ResponseError } from '../api/client'
import { usePlanPreview } from '../api/plans'
import type { PlanAlternative, PlanPreview } from '../api/types'
import type { Limit, Range } from '../charts/range-scale'
import { Ranges, RangeLegend } from '../charts/ranges'
import { duration, many, money, momentToMinute } from '../format'
import { ALTERNATIVES, AlternativesTable, Unkept } from '../plans/alternatives'
import { PlacesTable } from '../plans/places'
import { usePreferences } from '../preferences'
import { Labelled } from '../ui/field'
import { ErrorMessage, Loaded, Section } from '../ui/panel'
import type { Submission } from './commands'
import { FIELDS, PLAN_WORK, withValue, type Field, type ParsedJobFile } from './job-file'
import { budgetScale, deadlineScale, sliderPosition, secondsOf, spanText, valueAt, type Scale } from './plan-sliders'

interface ForecastProps {
  file: string
  parsed: ParsedJobFile
  /** The submission after a pause in typing. */
  settled: Submission
  /** Whether nothing would be billed. */
  simulated: boolean
  change: (file: string) => void
}

export function Forecast({ file, parsed, settled, simulated, change }: ForecastProps) {
  const [work, setWork] = useState('')
  const is_asked = parsed.has_plan || work !== ''
  const query = usePlanPreview(is_asked ? { ...settled, ...(!parsed.has_plan && { work }) } : null)
  // The sliders stay while a request fails, so that they can be moved back.
  const newest = useRef<PlanPreview | undefined>(undefined)
  if (query.data) newest.current = query.data
  const flaws = query.error instanceof ResponseError ? query.error.flaws : []
  return (
    <Section title="Forecast">
      {!parsed.has_plan && (
        <div className="form">
          <Labelled label="Work" hint="Training time of the whole job without interruptions, such as 31h.">
            {(named) => <input {...named} value={work} autoComplete="off" onChange={(event) => setWork(event.target.value)} />}
          </Labelled>
          <div className="field">
            <button type="button" disabled={work === ''} onClick={() => change(withValue(file, PLAN_WORK, work))}>Add a plan to the file</button>
            <small>A plan keeps the deadline. Without one, it only pauses a job that is late.</small>
          </div>
        </div>
      )}
      {newest.current && <Sliders file={file} parsed={parsed} preview={newest.current} change={change} />}
      {!is_asked ? <p className="note">Enter the work to see what the deadline needs.</p>
        : query.error ? (flaws.length > 0 ? <Unkept sentences={flaws.map(({ pointer, message }) => `${pointer} ${message}`)} /> : <ErrorMessage error={query.error} retry={() => void query.refetch()} />)
          : <Loaded query={query}>{(preview) => <Outcome preview={preview} simulated={simulated} />}</Loaded>}
    </Section>
  )
}

const fieldOf = (name: string): Field => FIELDS.find((field) => field.name === name) as Field
const DEADLINE = fieldOf('deadline')
const BUDGET = fieldOf('max_cost_usd')

/** Both write into the job file, as the fields of the form do. */
function Sliders({ file, parsed: { values }, preview, change }: Omit<ForecastProps, 'settled' | 'simulated'> & { preview: PlanPreview }) {
  const deadline_s = secondsOf(values.deadline ?? '', Date.now())
  const budget_usd = Number(values.max_cost_usd) || null
  // The scales do not shrink while a slider moves.
  const reach = useRef({ deadline_s: 0, budget_usd: 0 })
  reach.current = { deadline_s: Math.max(reach.current.deadline_s, deadline_s ?? 0), budget_usd: Math.max(reach.current.budget_usd, budget_usd ?? 0) }
  const deadline = deadlineScale(preview.work_s, reach.current.deadline_s)
  const budget = budgetScale(preview.alternatives, reach.current.budget_usd)
  return (
    <div className="form">
      <Slider label="Deadline" scale={deadline} value={deadline_s} is_disabled={values.deadline === undefined} words={(value) => `${duration(1000 * value)} after the submission`}
        change={(value) => change(withValue(file, DEADLINE, value === null ? '' : spanText(value)))} />
      <Slider label="Budget" scale={budget} value={budget_usd} is_disabled={values.max_cost_usd === undefined} words={(value) => money(1e6 * value)}
        change={(value) => change(withValue(file, BUDGET, value === null ? '' : String(value)))} />
    </div>
  )
}

interface SliderProps {
  label: string
  scale: Scale
  value: number | null
  /** Whether the file sets the value in a way that the slider cannot change. */
  is_disabled: boolean
  words: (value: number) => string
  change: (value: number | null) => void
}

function Slider({ label, scale, value, is_disabled, words, change }: SliderProps) {
  const id = useId()
  const text = value === null ? 'none' : words(value)
  return (
    <div className="field slider">
      <label htmlFor={id}>{label}</label>
      <input id={id} type="range" min={scale.step} max={scale.most + scale.step} step={scale.step} value={sliderPosition(value, scale)} disabled={is_disabled}
        aria-valuetext={text} aria-describedby={`${id}-hint`} onChange={(event) => change(valueAt(Number(event.target.value), scale))} />
      <strong aria-hidden="true">{text}</strong>
      <small id={`${id}-hint`}>{is_disabled ? 'Set by several keys: change it in the file.' : 'Changes the file. At the right end: none.'}</small>
    </div>
  )
}

function Outcome({ preview, simulated }: { preview: PlanPreview; simulated: boolean }) {
  const { clock } = usePreferences()
  const { alternatives, deadline_at, budget_micros } = preview
  const budget: Limit[] = budget_micros === null ? [] : [{ name: 'budget', value: budget_micros }]
  const deadline: Limit[] = deadline_at ? [{ name: 'deadline', value: Date.parse(deadline_at) }] : []
  const dollars = (micros: number) => `${simulated ? '~' : ''}${money(micros)}`
  const times = ({ name, end_at }: PlanAlternative): Range => ({ name: ALTERNATIVES[name], p10: Date.parse(end_at.p10), p50: Date.parse(end_at.p50), p90: Date.parse(end_at.p90) })
  return (
    <>
      <p role="status"><strong>{preview.sentence}</strong></p>
      {preview.refusals.length > 0 && <Unkept sentences={preview.refusals} />}
      {alternatives.length > 0 && (
        <>
          <RangeLegend />
          <figure>
            <figcaption className="small">Cost</figcaption>
            <Ranges label="Cost" ranges={alternatives.map(({ name, cost_micros }): Range => ({ name: ALTERNATIVES[name], ...cost_micros }))} limits={budget} format={dollars} />
          </figure>
          <figure>
            <figcaption className="small">End</figcaption>
            <Ranges label="End" ranges={alternatives.map(times)} limits={deadline} format={(at) => momentToMinute(at, clock)} />
          </figure>
          <AlternativesTable forecast={preview} simulated={simulated} />
        </>
      )}
      {preview.notes.map((note) => <p key={note} className="note">{note}</p>)}
      <p className="note">{basisWords(preview)}</p>
      {preview.places.length > 0 && <PlacesTable name="planned" places={preview.places} simulated={simulated} />}
    </>
  )
}

/** On how much the forecast rests. */
function basisWords({ observations, changeover_s, changeover_samples, on_demand_wait_s, policy, alternatives }: PlanPreview): string {
  const start = `${duration(1000 * changeover_s)} for each start (${changeover_samples > 0 ? `measured in ${many(changeover_samples, 'launch', 'launches')}` : 'assumed'})`
  const wait = on_demand_wait_s > 0 ? ` and ${duration(1000 * on_demand_wait_s)} of waiting for on-demand nodes` : ''
  return `Rests on ${many(observations, 'observation')} of the places, ${many(alternatives[0]?.runs ?? 0, 'simulated run')} of the policy ${policy}, ${start}${wait}.`
}
