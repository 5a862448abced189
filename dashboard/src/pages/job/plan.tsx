// The plan of a job: what it runs on and why, progress beside the safety net, forecasts, all choices, and its places now.

import type { ReactNode } from 'react'
import type { Query } from '../../api/queries'
import type { Attempt, Job, JobPlan, PlanChoice } from '../../api/types'
import { PlanChart } from '../../charts/plan-chart'
import type { Limit, Range } from '../../charts/range-scale'
import { Ranges, RangeLegend } from '../../charts/ranges'
import { duration, measured, money, momentToMinute } from '../../format'
import { CAPACITIES, capacityOf } from '../../phases'
import { PlacesTable } from '../../plans/places'
import { chance, Chance } from '../../plans/chance'
import { usePreferences } from '../../preferences'
import { Absent } from '../../ui/number'
import { Loaded } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { At } from '../../ui/time'

interface PlanProps {
  job: Job
  query: Query<JobPlan>
  attempts: Attempt[]
  now: number
}

export default function Plan({ query, ...rest }: PlanProps) {
  return <Loaded query={query} height="tall">{(plan) => <Shown plan={plan} {...rest} />}</Loaded>
}

function Shown({ job, plan, attempts, now }: Omit<PlanProps, 'query'> & { plan: JobPlan }) {
  const ended = job.ended_at ? Date.parse(job.ended_at) : null
  return (
    <>
      <p className="sentence">{plan.sentence}</p>
      {plan.next && <p className="note">{plan.next}</p>}
      <Details plan={plan} is_over={ended !== null} />
      <PlanChart plan={plan} attempts={attempts} submitted={Date.parse(job.submitted_at)} ended={ended} now={now} />
      <Forecasts plan={plan} ended={ended} simulated={job.simulated} />
      <Table name="choices" caption="Choices" columns={CHOICES} rows={plan.choices} keyOf={(one) => one.at} />
      {plan.places_now.length > 0 && <PlacesTable name="places" places={plan.places_now} simulated={job.simulated} />}
    </>
  )
}

function Details({ plan, is_over }: { plan: JobPlan; is_over: boolean }) {
  const { forecast } = plan
  return (
    <dl className="details">
      <Detail name="Objective">{plan.objective}, policy {plan.policy}</Detail>
      <Detail name="Saved work">{duration(1000 * plan.saved_s)} of {duration(1000 * plan.work_s)}</Detail>
      {plan.deadline_at && <Detail name="Deadline"><At at={plan.deadline_at} brief /></Detail>}
      {plan.slack_s !== null && !is_over && <Detail name="Slack">{slackWords(plan.slack_s)}</Detail>}
      <Detail name="Changeover">{duration(1000 * plan.changeover_s)}</Detail>
      {forecast && (
        <>
          {plan.deadline_at && <Detail name="Late"><Chance of={forecast.late} /></Detail>}
          {plan.budget_micros !== null && <Detail name="Over budget"><Chance of={forecast.over_budget} /></Detail>}
          <Detail name="Further preemptions">{measured(forecast.preemptions)}</Detail>
          <Detail name="Work lost by them">{duration(1000 * forecast.lost_work_s)}</Detail>
        </>
      )}
    </dl>
  )
}

const Detail = ({ name, children }: { name: string; children: ReactNode }) => <div><dt>{name}</dt><dd>{children}</dd></div>

const slackWords = (slack_s: number): string => (slack_s < 0 ? `−${duration(-1000 * slack_s)}` : duration(1000 * slack_s))

/** The first forecast and the present one, beside what has happened. */
function Forecasts({ plan, ended, simulated }: { plan: JobPlan; ended: number | null; simulated: boolean }) {
  const { clock } = usePreferences()
  const { forecast, first_forecast, deadline_at, budget_micros, paid_micros } = plan
  const made = [...(first_forecast ? [{ name: 'First forecast', of: first_forecast }] : []), ...(forecast && forecast.at !== first_forecast?.at ? [{ name: 'Newest', of: forecast }] : [])]
  if (made.length === 0) return <p className="note">No forecast yet: it follows with the first plan.</p>
  const cost: Limit[] = [{ name: 'paid', value: paid_micros, is_actual: true }, ...(budget_micros === null ? [] : [{ name: 'budget', value: budget_micros }])]
  const end: Limit[] = [...(ended === null ? [] : [{ name: 'ended', value: ended, is_actual: true as const }]), ...(deadline_at ? [{ name: 'deadline', value: Date.parse(deadline_at) }] : [])]
  return (
    <>
      <RangeLegend />
      <div className="columns">
        <figure>
          <figcaption className="small">Cost</figcaption>
          <Ranges label="Forecast of the cost" ranges={made.map(({ name, of }): Range => ({ name, ...of.cost_micros }))} limits={cost} format={(micros) => `${simulated ? '~' : ''}${money(micros)}`} />
        </figure>
        <figure>
          <figcaption className="small">End</figcaption>
          <Ranges label="Forecast of the end" ranges={made.map(({ name, of }): Range => ({ name, ...timesOf(of.end_at) }))} limits={end} format={(at) => momentToMinute(at, clock)} />
        </figure>
      </div>
    </>
  )
}

const timesOf = ({ p10, p50, p90 }: { p10: string; p50: string; p90: string }) => ({ p10: Date.parse(p10), p50: Date.parse(p50), p90: Date.parse(p90) })

const NO_DEADLINE = 'no deadline'

const CHOICES: Column<PlanChoice>[] = [
  { name: 'at', title: 'When', value: (one) => one.at, cell: (one) => <At at={one.at} brief /> },
  { name: 'capacity', title: 'What', value: whatOf, cell: (one) => <span title={CAPACITIES[capacityOf(one.capacity)].means}>{whatOf(one)}</span> },
  { name: 'places', title: 'Where', by: 'in order of preference', value: (one) => one.places.join(', '), cell: (one) => (one.places.length > 0 ? <span title={one.places.join(', ')}>{placesWords(one.places)}</span> : <Absent why="no request" />) },
  { name: 'why', title: 'Why', value: (one) => one.sentence, cell: (one) => <>{one.sentence}{one.moved && <small> moved</small>}</> },
  { name: 'slack_s', title: 'Slack', numeric: true, by: 'time that could be wasted before on-demand nodes would be late', value: (one) => one.slack_s, cell: (one) => (one.slack_s === null ? <Absent why={NO_DEADLINE} /> : slackWords(one.slack_s)) },
  { name: 'remaining_s', title: 'Work left', numeric: true, by: 'work that was in no complete checkpoint', value: (one) => one.remaining_s, cell: (one) => duration(1000 * one.remaining_s) },
  { name: 'net_at', title: 'On demand by', by: 'when on-demand nodes had to be requested at the latest if nothing was saved until then', value: (one) => one.net_at, cell: (one) => (one.net_at === null ? <Absent why={NO_DEADLINE} /> : <At at={one.net_at} brief />) },
  { name: 'late', title: 'Late', numeric: true, by: 'probability of missing the deadline', value: (one) => one.late, cell: (one) => (one.late === null ? <Absent why="not forecast" /> : chance(one.late)) },
  { name: 'policy', title: 'Policy', value: (one) => `${one.policy} ${one.policy_version}`, cell: (one) => `${one.policy} ${one.policy_version}` },
]

function whatOf({ capacity, reason }: PlanChoice): string {
  if (reason === 'wait_for_spot') return 'Waiting for spot'
  return CAPACITIES[capacityOf(capacity)].word
}

/** The first place, and how many more. */
const placesWords = ([first, ...more]: string[]): string => `${first ?? ''}${more.length > 0 ? ` +${more.length}` : ''}`
