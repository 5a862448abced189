// The jobs of a sweep as lines over one axis for each parameter, and one for the metric. Arrow keys move from job to job.

import { memo, useCallback, useId, useMemo, type KeyboardEvent } from 'react'
import { measured } from '../format'
import { rankStyle, type Axis, type Compared } from './parallel-axes'
import { useWidth } from './width'

const HEIGHT = 300
const TOP = 26
const FOOT = 18
const SIDE = 44
/** Smallest distance of two axes. A narrower window scrolls. */
const LEAST_PX = 76
/** Characters of a tick. */
const TICK_CHARS = 11

interface ParallelProps {
  axes: Axis[]
  /** From the best to the worst. */
  jobs: Compared[]
  metric: string
  chosen: ReadonlySet<string>
  /** Id of the job under the pointer, or that the arrow keys have reached. */
  active: string | null
  activate: (job: string | null) => void
  choose: (job: string) => void
  open: (job: string) => void
}

/** A job in words, with its parameters and the metric. */
export const jobWords = ({ trial, name, best }: Compared, metric: string): string =>
  [name, ...Object.entries(trial.params).map(([key, value]) => `${key} ${value}`), ...(metric ? [best === null ? `no ${metric} yet` : `${metric} ${measured(best)}`] : []), ...(trial.is_stopped_early ? ['stopped early'] : [])].join(', ')

export function ParallelCoordinates({ axes, jobs, metric, chosen, active, activate, choose, open }: ParallelProps) {
  const [box, room] = useWidth<HTMLDivElement>()
  const id = useId()
  const width = Math.max(room, 2 * SIDE + LEAST_PX * (axes.length - 1))
  const x = useCallback((at: number) => (axes.length > 1 ? SIDE + ((width - 2 * SIDE) * at) / (axes.length - 1) : width / 2), [axes.length, width])
  const valued = jobs.filter(({ best }) => best !== null).length
  const keys = (event: KeyboardEvent) => {
    const at = jobs.findIndex(({ trial }) => trial.job_id === active)
    const steps: Record<string, number> = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: jobs.length - 1 }
    const to = steps[event.key]
    if (to !== undefined) {
      event.preventDefault()
      activate(jobs[Math.min(jobs.length - 1, Math.max(0, to))]?.trial.job_id ?? null)
    } else if (active && event.key === ' ') {
      event.preventDefault()
      choose(active)
    } else if (active && event.key === 'Enter') open(active)
    else if (event.key === 'Escape') activate(null)
  }
  // The active line is drawn last, above the others.
  const order = useMemo(() => [...jobs].reverse(), [jobs])
  const front = jobs.find(({ trial }) => trial.job_id === active)
  return (
    <div className="scroll" ref={box}>
      <svg className="parallel" width={width} height={HEIGHT} role="listbox" aria-multiselectable="true" tabIndex={0} onKeyDown={keys} onBlur={() => activate(null)} onPointerLeave={() => activate(null)}
        aria-label={`${jobs.length} jobs over ${axes.map(({ name }) => name).join(', ')}. Arrow keys move from the best job to the worst, Space selects, Enter opens.`}
        {...(front && { 'aria-activedescendant': `${id}-${front.trial.job_id}` })}>
        {order.map((job, at) => (
          <JobLine key={job.trial.job_id} id={`${id}-${job.trial.job_id}`} job={job} rank={jobs.length - 1 - at} valued={valued} axes={axes} x={x} metric={metric}
            is_chosen={chosen.has(job.trial.job_id)} activate={activate} choose={choose} />
        ))}
        {/* Above the lines, which would hide its numbers. */}
        {axes.map((axis, at) => <AxisLine key={axis.name} axis={axis} x={x(at)} />)}
        {front && <path className="parallel-active" d={pathOf(front, axes, x)} aria-hidden="true" />}
      </svg>
    </div>
  )
}

const y = (at: number): number => TOP + (HEIGHT - TOP - FOOT) * (1 - at)

function AxisLine({ axis, x }: { axis: Axis; x: number }) {
  return (
    <g aria-hidden="true">
      <text className="lane" x={x} y={14} textAnchor="middle">{cut(axis.name, 14)}<title>{axis.name}</title></text>
      <line className="grid" x1={x} x2={x} y1={y(0)} y2={y(1)} />
      {axis.ticks.map(({ text, at }) => (
        <g key={text}>
          <line className="cross" x1={x - 3} x2={x + 3} y1={y(at)} y2={y(at)} />
          <text className="tick" x={x - 6} y={y(at) + 4} textAnchor="end">{cut(text, TICK_CHARS)}</text>
        </g>
      ))}
    </g>
  )
}

const cut = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most - 1)}…` : text)

/** Through all axes on which the job has a value. */
function pathOf(job: Compared, axes: Axis[], x: (at: number) => number): string {
  const points = axes.flatMap((axis, at) => {
    const place = axis.at(job)
    return place === null ? [] : [`${x(at).toFixed(1)} ${y(place).toFixed(1)}`]
  })
  return points.length > 0 ? `M ${points.join(' L ')}` : ''
}

interface LineProps {
  id: string
  job: Compared
  rank: number
  /** Number of jobs with a value. */
  valued: number
  axes: Axis[]
  x: (at: number) => number
  metric: string
  is_chosen: boolean
  activate: (job: string) => void
  choose: (job: string) => void
}

const JobLine = memo(function JobLine({ id, job, rank, valued, axes, x, metric, is_chosen, activate, choose }: LineProps) {
  const { job_id, is_stopped_early } = job.trial
  const style = job.best === null ? null : rankStyle(rank, valued)
  const path = pathOf(job, axes, x)
  const end = axes.at(-1)?.at(job) ?? null
  return (
    <g role="option" id={id} aria-selected={is_chosen} aria-label={jobWords(job, metric)} className={is_chosen ? 'parallel-line chosen' : 'parallel-line'} onPointerOver={() => activate(job_id)} onClick={() => choose(job_id)}>
      <path className="touch" d={path} />
      <path d={path} style={style ? { stroke: style.colour, strokeDasharray: style.dash } : {}} />
      {is_stopped_early && end !== null && <path className="parallel-stopped" d={`M ${x(axes.length - 1) - 4} ${y(end) - 4} l 8 8 m 0 -8 l -8 8`} />}
    </g>
  )
})

export function ParallelLegend({ metric, has_stopped }: { metric: string; has_stopped: boolean }) {
  return (
    <ul className="key">
      {[['none', 'Best third'], ['7 3', 'Middle'], ['2 3', 'Worst']].map(([dash = '', title = ''], at) => (
        <li key={title}>
          <svg width="26" height="10" aria-hidden="true"><line x1="0" x2="26" y1="5" y2="5" style={{ stroke: rankStyle(at, 3).colour, strokeDasharray: dash, strokeWidth: 2 }} /></svg>
          {title}{at === 0 && ` by ${metric}`}
        </li>
      ))}
      <li><svg width="26" height="10" aria-hidden="true"><line className="parallel-none" x1="0" x2="26" y1="5" y2="5" /></svg>No {metric} yet</li>
      {has_stopped && <li><svg width="12" height="12" aria-hidden="true"><path className="parallel-stopped" d="M 2 2 l 8 8 m 0 -8 l -8 8" /></svg>Stopped early</li>}
    </ul>
  )
}
