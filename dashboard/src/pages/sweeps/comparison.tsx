// A sweep: its jobs compared by parameters, a metric and cost.

import { Suspense, useCallback, useMemo, useState } from 'react'
import { Link, useNavigate, useParams, useSearchParams } from 'react-router'
import { ResponseError } from '../../api/client'
import { useSweep, useSweepCosts, useSweepMetrics } from '../../api/fleet'
import type { SweepDetail, SweepMetrics } from '../../api/types'
import { MOST_COLOURS } from '../../charts/attempt-colours'
import { compare, guessHigher, metricAxis, parameterAxis, rankedJobs, varied, type Compared } from '../../charts/parallel-axes'
import { jobWords, ParallelCoordinates, ParallelLegend } from '../../charts/parallel-coordinates'
import { ranked } from '../../charts/series'
import { many, measured } from '../../format'
import { lazyComponent } from '../../ui/lazy'
import { ErrorMessage, Loaded, Section, useLastError } from '../../ui/panel'
import { SelectionActions } from '../selection'
import { SweepHead } from './head'
import { TrialTable } from './trials'

const NO_CURVES: SweepMetrics['curves'] = []

const OverlaidCurves = lazyComponent(() => import('../../charts/overlaid-curves'))

export default function SweepPage() {
  const { sweep_id: id = '' } = useParams()
  const query = useSweep(id)
  const error = useLastError(query)
  if (query.data) return <Shown key={query.data.id} sweep={query.data} />
  if (query.isPending && !error) return <div className="skeleton tall" role="status"><span className="visually-hidden">Loading</span></div>
  const is_absent = error instanceof ResponseError && error.status === 404
  return (
    <>
      <h1>{is_absent ? 'Sweep not found' : `Sweep ${id}`}</h1>
      <ErrorMessage error={error} {...(!is_absent && { retry: () => void query.refetch() })} />
      <p><Link to="/sweeps">All sweeps</Link></p>
    </>
  )
}

/** What the address holds of the comparison. */
function useComparison(sweep: SweepDetail) {
  const [params, setParams] = useSearchParams()
  const put = (name: string, value: string) => setParams((now) => (value ? now.set(name, value) : now.delete(name), now), { replace: true })
  const names = useSweepMetrics(sweep.id, '')
  const logged = ranked(names.data?.names ?? [])
  const metric = params.get('metric') ?? sweep.stop?.metric ?? logged[0] ?? ''
  const said = params.get('better')
  const is_higher_better = said ? said === 'high' : metric === sweep.stop?.metric ? sweep.stop.mode === 'max' : guessHigher(metric)
  return { names, options: [...new Set([...(metric ? [metric] : []), ...logged])], metric, is_higher_better, is_log: params.get('log') === '1', put }
}

/** Chosen jobs, and the one under the pointer or reached by keys, in all charts and the table. */
function useMarked(trials: SweepDetail['trials']) {
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set())
  const [active, activate] = useState<string | null>(null)
  const chosen = useMemo(() => new Set(trials.map(({ job_id }) => job_id).filter((id) => marked.has(id))), [trials, marked])
  const choose = useCallback((ids: string[], is_chosen: boolean) => setMarked((now) => new Set(is_chosen ? [...now, ...ids] : [...now].filter((id) => !ids.includes(id)))), [])
  const turn = useCallback((id: string) => setMarked((now) => new Set(now.has(id) ? [...now].filter((one) => one !== id) : [...now, id])), [])
  return { chosen, choose, turn, clear: () => setMarked(new Set()), active, activate }
}

function Shown({ sweep }: { sweep: SweepDetail }) {
  const comparison = useComparison(sweep)
  const { metric, is_higher_better } = comparison
  const metrics = useSweepMetrics(sweep.id, metric)
  const marked = useMarked(sweep.trials)
  const curves = metrics.data?.name === metric ? metrics.data.curves : NO_CURVES
  const jobs = useMemo(() => rankedJobs(compare(sweep.trials, sweep.name, curves, is_higher_better), is_higher_better), [sweep, curves, is_higher_better])
  const best = jobs[0]?.best === null ? null : (jobs[0] ?? null)
  const chosen = [...marked.chosen]
  const cost = useSweepCosts().data?.costs.find(({ key }) => key === sweep.id)
  const soft = { simulated: cost?.simulated ?? false, estimate: cost?.is_price_estimate ?? false }
  return (
    <>
      <title>{`${sweep.name} · Sweep · Holdfast`}</title>
      <SweepHead sweep={sweep} best={best} metric={metric} soft={soft} />
      <Charts sweep={sweep} comparison={comparison} metrics={metrics} jobs={jobs} marked={marked} />
      <Section title="Jobs" aside={
        chosen.length > 0 && (
          <span className="row">
            <SelectionActions title={`Act on ${many(chosen.length, 'selected job')}`} asks={`Act on ${many(chosen.length, 'selected job')}`} target={{ job_ids: chosen }} />
            <button type="button" className="quiet" onClick={marked.clear}>Clear</button>
          </span>
        )
      }>
        <TrialTable sweep={sweep} jobs={jobs} best={best} metric={metric} soft={soft} chosen={marked.chosen} choose={marked.choose} />
      </Section>
    </>
  )
}

interface ChartsProps {
  sweep: SweepDetail
  comparison: ReturnType<typeof useComparison>
  metrics: ReturnType<typeof useSweepMetrics>
  jobs: Compared[]
  marked: ReturnType<typeof useMarked>
}

function Charts({ sweep, comparison, metrics, jobs, marked }: ChartsProps) {
  const { metric, options, is_higher_better, is_log, put } = comparison
  const go = useNavigate()
  const parameters = varied(sweep.params)
  const has_value = jobs.some(({ best }) => best !== null)
  const axes = useMemo(
    () => [...parameters.map((name) => parameterAxis(name, sweep.params[name] ?? [])), ...(has_value ? [metricAxis(metric, jobs, is_higher_better, is_log)] : [])],
    // eslint-disable-next-line react-hooks/exhaustive-deps -- parameters follow from the sweep
    [sweep, jobs, metric, is_higher_better, is_log, has_value],
  )
  const shown = (marked.chosen.size > 0 ? jobs.filter(({ trial }) => marked.chosen.has(trial.job_id)) : jobs).filter(({ best }) => best !== null).slice(0, MOST_COLOURS)
  const front = jobs.find(({ trial }) => trial.job_id === marked.active)
  return (
    <Section title="Comparison" aside={
      <div className="row">
        {options.length > 0 && <label className="row">Metric <select value={metric} onChange={(event) => put('metric', event.target.value)}>{options.map((name) => <option key={name}>{name}</option>)}</select></label>}
        {options.length > 0 && <label className="row">Better <select value={is_higher_better ? 'high' : 'low'} onChange={(event) => put('better', event.target.value)}><option value="low">lower</option><option value="high">higher</option></select></label>}
        <label><input type="checkbox" checked={is_log} onChange={(event) => put('log', event.target.checked ? '1' : '')} /> Log scale</label>
      </div>
    }>
      <div className="two-columns">
        <div className="stack">
          {axes.length > 0 && (
            <ParallelCoordinates axes={axes} jobs={jobs} metric={metric} chosen={marked.chosen} active={marked.active} activate={marked.activate} choose={marked.turn} open={(job) => void go(`/jobs/${job}`)} />
          )}
          {metric && <ParallelLegend metric={metric} has_stopped={jobs.some(({ trial }) => trial.is_stopped_early)} />}
        </div>
        <Loaded query={metrics} height="tall" empty={(data) => (data.curves.length === 0 ? <p>{metric ? `No job has logged ${metric} yet.` : 'No metrics yet.'} A script logs them with <code>run.log(loss=...)</code>.</p> : null)}>
          {(data) => (
            <div className="stack">
              <Suspense fallback={<div className="skeleton tall" role="status"><span className="visually-hidden">Loading</span></div>}>
                <OverlaidCurves metrics={data} coloured={shown.map(({ trial }) => trial.job_id)} active={marked.active} activate={marked.activate} nameOf={(id) => jobs.find(({ trial }) => trial.job_id === id)?.name ?? id} is_log={is_log} />
              </Suspense>
              <CurveLegend shown={shown} data={data} parameters={parameters} is_chosen={marked.chosen.size > 0} activate={marked.activate} />
            </div>
          )}
        </Loaded>
      </div>
      <output className="small" aria-live="off">{front ? jobWords(front, metric) : 'Point at a line, or press Tab and the arrow keys, to see its job. A click or Space selects it.'}</output>
    </Section>
  )
}

interface LegendProps {
  shown: Compared[]
  data: SweepMetrics
  parameters: string[]
  is_chosen: boolean
  activate: (job: string | null) => void
}

function CurveLegend({ shown, data, parameters, is_chosen, activate }: LegendProps) {
  const others = data.curves.length - shown.length
  return (
    <ul className="key">
      {shown.map(({ trial, name, last }, at) => (
        <li key={trial.job_id} onPointerOver={() => activate(trial.job_id)} onPointerLeave={() => activate(null)}>
          <svg width="22" height="10" aria-hidden="true"><line className={`stroke-${at + 1}`} x1="0" x2="22" y1="5" y2="5" /></svg>
          <Link to={`/jobs/${trial.job_id}`}>{name}</Link> {parameters.map((parameter) => `${parameter} ${trial.params[parameter]}`).join(', ')}{last !== null && `: ${measured(last)}`}
        </li>
      ))}
      {others > 0 && <li><svg width="22" height="10" aria-hidden="true"><line className="parallel-faint" x1="0" x2="22" y1="5" y2="5" /></svg>{many(others, 'other job')}{!is_chosen && shown.length > 0 && '; the best are in colours, select others in the table'}</li>}
    </ul>
  )
}
