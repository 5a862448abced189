// A metric of all jobs of a sweep over common steps: some jobs in colours, the others as thin grey lines.

import { useEffect, useMemo, useRef } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import type { SweepMetrics } from '../api/types'
import { count, many, measured } from '../format'
import { usePreferences } from '../preferences'
import { lineStyle, MOST_COLOURS } from './attempt-colours'
import { resolvedColour } from './resolved-colour'
import { useWidth } from './width'

const HEIGHT = 300
/** Distance from the pointer within which a curve is the active one. */
const NEAR_PX = 24

interface OverlaidProps {
  metrics: SweepMetrics
  /** Ids of the jobs in colours, at most `MOST_COLOURS`, in the order of the legend. */
  coloured: string[]
  active: string | null
  activate: (job: string | null) => void
  nameOf: (job: string) => string
  is_log: boolean
}

export default function OverlaidCurves({ metrics, coloured, active, activate, nameOf, is_log }: OverlaidProps) {
  const [box, width] = useWidth<HTMLDivElement>()
  const { colours } = usePreferences()
  const place = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  // Coloured curves are drawn above the others, the first one last.
  const order = useMemo(() => {
    const rank = (id: string) => (coloured.includes(id) ? coloured.length - coloured.indexOf(id) : 0)
    return [...metrics.curves].sort((a, b) => rank(a.job_id) - rank(b.job_id))
    // eslint-disable-next-line react-hooks/exhaustive-deps -- compared by value
  }, [metrics, coloured.join()])
  const at = active === null ? -1 : order.findIndex(({ job_id }) => job_id === active)
  const latest = useRef({ activate, at })
  latest.current = { activate, at }
  useEffect(() => {
    if (!place.current || width === 0) return
    const values = order.map((curve) => curve.values.map((value) => (value !== null && (!is_log || value > 0) ? value : null)))
    const series = order.map(({ job_id }) => seriesOf(coloured.indexOf(job_id)))
    const hooks: uPlot.Hooks.Arrays = {
      // Without the pointer, uPlot reports that no curve is near; keys or another chart may have activated one.
      setSeries: [(chart, near) => (chart.cursor.left ?? -1) >= 0 && latest.current.activate(near === null ? null : (order[near - 1]?.job_id ?? null))],
      draw: [(chart) => drawActive(chart, latest.current.at + 1)],
    }
    plot.current = new uPlot({ ...options(width, series, is_log), hooks }, [metrics.steps, ...values], place.current)
    return () => {
      plot.current?.destroy()
      plot.current = null
    }
    // `colours` changes with the theme, whose colours are read from the style sheet.
    // eslint-disable-next-line react-hooks/exhaustive-deps -- coloured compared by value
  }, [width, metrics, order, coloured.join(), is_log, colours])
  useEffect(() => plot.current?.redraw(false), [at])
  const curve = order[at]
  const words = `${metrics.name} of ${many(order.length, 'job')} over ${count(metrics.steps.at(-1) ?? 0)} steps; the table lists the best and the last values`
  return (
    <figure className="metric-chart overlaid" ref={box}>
      <figcaption>
        {metrics.name}
        <output className="number">{curve ? `${nameOf(curve.job_id)}: last ${curve.last === null ? 'unknown' : measured(curve.last)}, ${measured(curve.low)} to ${measured(curve.high)}` : ''}</output>
      </figcaption>
      <div ref={place} role="img" aria-label={words} className="plot" onPointerLeave={() => activate(null)} />
    </figure>
  )
}

function seriesOf(rank: number): uPlot.Series {
  if (rank < 0) return { stroke: resolvedColour('var(--plot-faint)'), width: 1, spanGaps: true, points: { show: false } }
  const { colour, dash } = lineStyle(rank + 1, MOST_COLOURS)
  return { stroke: resolvedColour(colour), width: 2, dash, spanGaps: true, points: { show: false } }
}

/** The active curve, above all others. */
function drawActive({ ctx, data, valToPos }: uPlot, series: number): void {
  const values = data[series]
  if (series === 0 || !values) return
  ctx.save()
  ctx.strokeStyle = resolvedColour('var(--ink)')
  ctx.lineWidth = 3.5 * devicePixelRatio
  ctx.lineJoin = 'round'
  ctx.beginPath()
  values.forEach((value, at) => {
    if (value != null) ctx.lineTo(valToPos(data[0][at] ?? 0, 'x', true), valToPos(value, 'y', true))
  })
  ctx.stroke()
  ctx.restore()
}

function options(width: number, series: uPlot.Series[], is_log: boolean): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: resolvedColour('var(--plot-quiet)'),
    grid: { stroke: resolvedColour('var(--plot-grid)'), width: 1 },
    ticks: { show: false },
    font: '12px system-ui',
  }
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    focus: { alpha: 1 },
    // Not all jobs have a value at each step.
    cursor: { y: false, hover: { skip: [null, undefined] }, drag: { x: false, y: false }, focus: { prox: NEAR_PX }, points: { show: false } },
    scales: { x: { time: false }, y: is_log ? { distr: 3 } : {} },
    axes: [{ ...axis, size: 28 }, { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : measured(tick))) }],
    series: [{}, ...series],
  }
}
