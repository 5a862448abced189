// The metrics of a job over steps: loss and speed first, others on request.

import { Suspense, useMemo } from 'react'
import { useSearchParams } from 'react-router'
import { useSeries } from '../../api/queries'
import type { Attempt, SeriesPage } from '../../api/types'
import { MOST_COLOURS } from '../../charts/attempt-colours'
import { columnsOf, first, marksDue, marksIn, momentsOf, PACE, paceOf, ranked, stepMarksOf, type StepMark } from '../../charts/series'
import { count, many } from '../../format'
import { lazyComponent } from '../../ui/lazy'
import { Loaded } from '../../ui/panel'
import { MARKS } from '../../phases'
import { useZoom } from './attempts'

const MetricChart = lazyComponent(() => import('../../charts/metric-chart'))

/** Largest number of metrics in one response. */
const MOST = 50

interface MetricsProps {
  job: string
  live: boolean
  there_are: SeriesPage
  attempts: Attempt[]
}

export function Metrics({ job, live, there_are, attempts }: MetricsProps) {
  const [params, setParams] = useSearchParams()
  const names = ranked(there_are.series.map((one) => one.name))
  const asked = params.get('curves')?.split('\n')
  const chosen = (asked ? names.filter((name) => asked.includes(name)) : first(names)).slice(0, MOST)
  const choose = (name: string, is_on: boolean) => {
    const next = names.filter((one) => (one === name ? is_on : chosen.includes(one)))
    setParams((now) => (now.set('curves', next.join('\n')), now), { replace: true })
  }
  const marks = useMemo(() => stepMarksOf(attempts), [attempts])
  const due = useMemo(() => marksDue(attempts), [attempts])
  // The speed is computed from the first metric, which is usually logged most often.
  const needed = [...new Set([...chosen, ...names.slice(0, 1)])]
  return (
    <>
      {names.length > 1 && (
        <div className="row choices" role="group" aria-label="Metrics">
          {names.slice(0, MOST).map((name) => (
            <label key={name}>
              <input type="checkbox" checked={chosen.includes(name)} onChange={(event) => choose(name, event.target.checked)} /> {name}
            </label>
          ))}
          {names.length > MOST && <small>{names.length - MOST} more in the API</small>}
        </div>
      )}
      <Loaded query={useSeries(job, needed, live)}>
        {(page) => <Drawn page={page} chosen={chosen} paced={names[0] ?? ''} marks={marks} due={due} />}
      </Loaded>
    </>
  )
}

interface DrawnProps {
  page: SeriesPage
  chosen: string[]
  /** The metric from which the speed is computed. */
  paced: string
  marks: StepMark[]
  /** Number of losses of each kind, drawn or not. */
  due: ReturnType<typeof marksDue>
}

function Drawn({ page, chosen, paced, marks, due }: DrawnProps) {
  const [window, zoom] = useZoom()
  const drawn = useMemo(() => {
    const buckets = (name: string) => page.series.find((one) => one.name === name)?.buckets ?? []
    return [
      ...chosen.map((name) => ({ name, columns: columnsOf(buckets(name), window) })),
      { name: PACE, columns: paceOf(buckets(paced), window) },
    ].map((one) => ({ ...one, marks: window ? marksIn(marks, one.columns.steps) : marks }))
    // eslint-disable-next-line react-hooks/exhaustive-deps -- names and window compared by value
  }, [page, marks, chosen.join('\n'), paced, window?.from, window?.to])
  const zoomTo = (steps: [number, number] | null) => {
    const made = steps && momentsOf(page.series.find((one) => one.name === paced)?.buckets ?? [], steps)
    if (made || steps === null) zoom(made)
  }
  const series = drawn.flatMap(({ columns }) => columns.series)
  const newest = Math.max(1, ...series.map((one) => one.attempt))
  return (
    <>
      <Legend attempts={[...new Set(series.map((one) => one.attempt))]} rolled_back={series.some((one) => one.rolled_back)} marks={mostOf(drawn.map((one) => one.marks))} due={due} />
      <Suspense fallback={<div className="skeleton middle" role="status"><span className="visually-hidden">Loading</span></div>}>
        <div className="columns">
          {drawn.map(({ name, columns, marks }) =>
            columns.steps.length > 0 ? (
              <MetricChart key={name} title={name} newest={newest} columns={columns} marks={marks} from_zero={name === PACE} zoom={zoomTo} />
            ) : (
              <p key={name} className="empty">No {name} in this time window.</p>
            ),
          )}
        </div>
      </Suspense>
    </>
  )
}

/** The marks of the chart with most of them: zoomed charts may cover different steps. */
const mostOf = (charts: StepMark[][]): StepMark[] => charts.reduce((most, marks) => (marks.length > most.length ? marks : most), [])

const KINDS: StepMark['kind'][] = ['preemption', 'loss', 'failure', 'pause', 'move', 'resume']

interface LegendProps {
  attempts: number[]
  rolled_back: boolean
  marks: StepMark[]
  due: DrawnProps['due']
}

function Legend({ attempts, rolled_back, marks, due }: LegendProps) {
  const newest = Math.max(1, ...attempts)
  return (
    <ul className="key">
      {newest > MOST_COLOURS ? (
        <li><span className="ramp" aria-hidden="true" />Attempts {Math.min(...attempts)} (oldest) to {newest} (newest)</li>
      ) : attempts.map((attempt) => (
        <li key={attempt}>
          <svg width="22" height="10" aria-hidden="true"><line className={`stroke-${attempt}`} x1="0" x2="22" y1="5" y2="5" /></svg>
          Attempt {attempt}
        </li>
      ))}
      {rolled_back && (
        <li>
          <svg width="12" height="12" aria-hidden="true"><circle className="hollow" cx="6" cy="6" r="3.5" /></svg>
          Rolled back
        </li>
      )}
      {KINDS.map((kind) => {
        const { one, more, means } = MARKS[kind]
        const times = marks.filter((mark) => mark.kind === kind).length
        const all = Math.max(times, due[kind] ?? 0)
        return times > 0 && (
          <li key={kind} title={`${means}${all > times ? '. The others came before a first step or are outside the window' : ''}`}>
            <svg width="6" height="14" aria-hidden="true"><line className={`stroke-${kind}`} x1="3" x2="3" y1={kind === 'resume' ? 8 : 0} y2="14" /></svg>
            {all > times && `${count(times)} of `}{many(all, one, more)}
          </li>
        )
      })}
    </ul>
  )
}
