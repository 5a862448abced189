// Saved work of a planned job over time, with its safety net, deadline and forecasts; the choices are bands above it.

import type { Attempt, JobPlan } from '../api/types'
import { duration, measured, momentToMinute, type Clock } from '../format'
import { usePreferences } from '../preferences'
import { Bands, BandItems, BAR } from './capacity-bands'
import { frameOf, type PageFrame } from './frame'
import { bandsOf, type Band } from './plan-bands'
import { fanOf, netLine, planWindow, savedAt, savedSteps, type Point } from './plan-progress'
import { axisTicks } from './scale'
import { AXIS, TimeAxis } from './swimlane'
import { useWidth } from './width'

const HEIGHT = 260
/** Top of the plot, below the bands and the labels of lines. */
const TOP = 46
const HOUR_S = 3600

interface PlanChartProps {
  plan: JobPlan
  attempts: Attempt[]
  /** Milliseconds since the epoch; `ended` is null while the job is not over. */
  submitted: number
  ended: number | null
  now: number
}

export function PlanChart({ plan, attempts, submitted, ended, now }: PlanChartProps) {
  const { clock } = usePreferences()
  const [box, width] = useWidth<HTMLElement>()
  const until = ended ?? now
  const window = planWindow(plan, submitted, until)
  const frame = frameOf(width, window)
  const ticks = axisTicks(Math.max(plan.work_s, 60) / HOUR_S)
  const most_s = (ticks.at(-1) ?? 1) * HOUR_S
  const y = (s: number) => TOP + (HEIGHT - AXIS - TOP) * (1 - s / most_s)
  const points = (of: Point[]) => of.map(({ at, s }) => `${frame.x(at)},${y(s)}`).join(' ')
  const net = netLine(plan, window)
  const [begin, end] = [net[0], net.at(-1)]
  const due = plan.deadline_at ? Date.parse(plan.deadline_at) : window.to
  const bands = bandsOf(plan.choices, attempts, until)
  const first = plan.first_forecast && { forecast: plan.first_forecast, from: { at: Date.parse(plan.first_forecast.at), s: savedAt(plan, Date.parse(plan.first_forecast.at)) } }
  const fan = plan.forecast && ended === null && fanOf(plan.forecast, { at: now, s: plan.saved_s }, plan.work_s)
  const first_fan = first && fanOf(first.forecast, first.from, plan.work_s)
  return (
    <figure className="plan-chart" ref={box}>
      <figcaption><PlanLegend has_net={net.length > 0} has_fan={Boolean(fan)} has_first={Boolean(first_fan)} bands={bands} /></figcaption>
      <svg width={width} height={HEIGHT} role="img" aria-label={words(plan, ended, clock)}>
        <TimeAxis frame={frame} height={HEIGHT} />
        {ticks.map((tick) => (
          <g key={tick}>
            <line className="grid" x1={frame.left} x2={frame.left + frame.inner} y1={y(tick * HOUR_S)} y2={y(tick * HOUR_S)} />
            <text className="tick" x={frame.left - 6} y={y(tick * HOUR_S) + 4} textAnchor="end">{measured(tick)} h</text>
          </g>
        ))}
        <text className="lane" x={0} y={BAR - 3}>Choice</text>
        <Bands bands={bands} frame={frame} y={0} />
        {begin && end && <polygon className="net-ground" points={points([begin, end, { at: due, s: end.s }, { at: due, s: 0 }, { at: begin.at, s: 0 }])} />}
        {fan && <polygon className="fan" points={points(fan.corners)} />}
        {first_fan && <polygon className="fan-first" points={points(first_fan.corners)} />}
        {fan && <line className="fan-middle" x1={frame.x(now)} y1={y(plan.saved_s)} x2={frame.x(fan.middle.at)} y2={y(fan.middle.s)} />}
        <polyline className="net-line" points={points(net)} />
        <line className="all-work" x1={frame.left} x2={frame.left + frame.inner} y1={y(plan.work_s)} y2={y(plan.work_s)} />
        <polyline className="saved-line" points={points(savedSteps(plan, submitted, until))} />
        {plan.deadline_at && <Moment frame={frame} at={due} word="deadline" row={1} />}
        <Moment frame={frame} at={until} word={ended === null ? 'now' : 'ended'} row={0} />
      </svg>
    </figure>
  )
}

/** A vertical line with its name above the plot. */
function Moment({ frame, at, word, row }: { frame: PageFrame; at: number; word: string; row: number }) {
  const x = frame.x(at)
  const is_right = x > frame.left + frame.inner / 2
  return (
    <>
      <line className={`moment ${word}`} x1={x} x2={x} y1={BAR + 4 + 12 * row} y2={HEIGHT - AXIS} />
      <text className="tick" x={x + (is_right ? -4 : 4)} y={BAR + 14 + 12 * row} textAnchor={is_right ? 'end' : 'start'}>{word}</text>
    </>
  )
}

function PlanLegend({ has_net, has_fan, has_first, bands }: { has_net: boolean; has_fan: boolean; has_first: boolean; bands: Band[] }) {
  return (
    <ul className="key">
      <BandItems bands={bands} />
      <Line name="Saved work" means="work that complete checkpoints hold" line="saved-line" />
      {has_net && <Line name="Safety net" means="below this line, on-demand nodes must run to keep the deadline" line="net-line" />}
      <Line name="All work" means="training time of the whole job" line="all-work" />
      {has_fan && <li title="80 of 100 simulated runs end in it; the line is P50"><svg width="18" height="12" aria-hidden="true"><rect className="fan" x="1" y="1" width="16" height="10" /></svg>Forecast, P10 to P90</li>}
      {has_first && <li title="the first forecast of this job, to compare with what has happened"><svg width="18" height="12" aria-hidden="true"><rect className="fan-first" x="1" y="1" width="16" height="10" /></svg>First forecast</li>}
    </ul>
  )
}

function Line({ name, means, line }: { name: string; means: string; line: string }) {
  return <li title={means}><svg width="18" height="10" aria-hidden="true"><line className={line} x1="0" x2="18" y1="5" y2="5" /></svg>{name}</li>
}

/** The accessible name. */
function words({ saved_s, work_s, net_at, deadline_at, forecast }: JobPlan, ended: number | null, clock: Clock): string {
  const at = (when: string) => momentToMinute(Date.parse(when), clock)
  return [
    `Saved work over time: ${duration(1000 * saved_s)} of ${duration(1000 * work_s)}`,
    ...(ended === null && net_at ? [`safety net reached at ${at(net_at)} if nothing is saved until then`] : []),
    ...(deadline_at ? [`deadline ${at(deadline_at)}`] : []),
    ...(ended === null && forecast ? [`expected end ${at(forecast.end_at.p50)}, ${at(forecast.end_at.p10)} to ${at(forecast.end_at.p90)}`] : []),
  ].join('; ')
}
