// A metric over steps: one line per attempt, hollow points for rolled-back steps, vertical lines for losses and resumes.

import { useEffect, useRef, useState } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { count, many, measured } from '../format'
import { usePreferences } from '../preferences'
import { MARKS } from '../phases'
import { lineStyle } from './attempt-colours'
import type { Columns, StepMark } from './series'
import { LEAST_PULL } from './frame'
import { resolvedColour } from './resolved-colour'
import { useWidth } from './width'

const HEIGHT = 200

/** Lines of marks, as in the style sheet for the legend. */
const LINES: Record<StepMark['kind'], { ink: string; dash: number[]; height: number }> = {
  preemption: { ink: '--plot-loss', dash: [4, 3], height: 1 },
  loss: { ink: '--plot-loss', dash: [1, 3], height: 1 },
  failure: { ink: '--plot-loss', dash: [8, 2, 2, 2], height: 1 },
  pause: { ink: '--plot-quiet', dash: [4, 3], height: 1 },
  move: { ink: '--plot-quiet', dash: [1, 3], height: 1 },
  // Short, since it is often at the step of the previous loss.
  resume: { ink: '--good', dash: [], height: 0.2 },
}

interface MetricChartProps {
  title: string
  /** Number of the newest attempt, for the line styles. */
  newest: number
  columns: Columns
  marks: StepMark[]
  /** Called after a drag with the selected steps, and after a double click with null. */
  zoom: (steps: [number, number] | null) => void
  /** Whether the y axis starts at 0, as for rates. */
  from_zero: boolean
}

export default function MetricChart({ title, columns, newest, marks, from_zero, zoom }: MetricChartProps) {
  const [box, width] = useWidth<HTMLDivElement>()
  const { colours } = usePreferences()
  const place = useRef<HTMLDivElement>(null)
  const [hovered, setHovered] = useState<number | null>(null)
  const latest = useRef(zoom)
  latest.current = zoom
  useEffect(() => {
    if (!place.current || width === 0) return
    const plot = new uPlot(options(width, { columns, newest, marks, from_zero, zoom: (steps) => latest.current(steps) }, setHovered), data(columns), place.current)
    return () => plot.destroy()
    // `colours` changes with the theme, whose colours are read from the style sheet.
  }, [width, columns, newest, marks, from_zero, colours])
  const last = columns.series.at(-1)?.values.findLast((value) => value !== null)
  const words = `${title} over ${columns.steps.length} steps${last == null ? '' : `, ${measured(last)} at the last`}${counted(marks)}`
  return (
    <figure className="metric-chart" ref={box}>
      <figcaption>
        {title}
        {columns.not_finite > 0 && <span>, {count(columns.not_finite)} not finite ✕</span>}
        <output className="number">{valuesAt(columns, hovered)}</output>
      </figcaption>
      <div ref={place} role="img" aria-label={words} className="plot" />
    </figure>
  )
}

/** The number of marks of each kind, for the accessible name. */
function counted(marks: StepMark[]): string {
  const kinds = [...new Set(marks.map((mark) => mark.kind))]
  return kinds.map((kind) => `, ${many(marks.filter((mark) => mark.kind === kind).length, MARKS[kind].one, MARKS[kind].more)}`).join('')
}

const data = ({ steps, series }: Columns): uPlot.AlignedData => [steps, ...series.map((one) => one.values)]

/** Values at the hovered step, else at the last one. */
function valuesAt({ steps, series }: Columns, hovered: number | null): string {
  const at = hovered ?? steps.length - 1
  const values = series.flatMap(({ attempt, rolled_back, values }) => {
    const value = values[at]
    return value == null ? [] : [`${measured(value)} in attempt ${attempt}${rolled_back ? ', rolled back' : ''}`]
  })
  return values.length > 0 ? `logged at step ${count(steps[at] ?? 0)}: ${values.join('; ')}` : ''
}

function options(
  width: number,
  { columns, newest, marks, from_zero, zoom }: Omit<MetricChartProps, 'title'>,
  hover: (at: number | null) => void,
): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: token('--plot-quiet'),
    grid: { stroke: token('--plot-grid'), width: 1 },
    ticks: { show: false },
    font: '12px system-ui',
  }
  const ground = token('--plot-ground')
  const inks = Object.fromEntries(Object.entries(LINES).map(([kind, { ink }]) => [kind, token(ink)]))
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => (zoom(null), null) } },
    scales: { x: { time: false }, y: from_zero ? { range: (_, __, most) => [0, (most || 1) * 1.1] } : {} },
    axes: [{ ...axis, size: 28 }, { ...axis, size: 58, values: (_, ticks) => ticks.map(measured) }],
    series: [{}, ...columns.series.map((one) => seriesOf(one, newest, ground))],
    hooks: {
      setCursor: [(plot) => hover(plot.cursor.idx ?? null)],
      setSelect: [(plot) => pulled(plot, zoom)],
      draw: [(plot) => marks.forEach(({ step, kind }) => mark(plot, step, inks[kind] ?? '', LINES[kind]))],
    },
  }
}

/** The caller maps the selected steps to a time window and zooms all charts. */
function pulled(plot: uPlot, zoom: MetricChartProps['zoom']): void {
  const { left, width } = plot.select
  if (width <= LEAST_PULL) return
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false)
  zoom([plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x')])
}

const token = (name: string): string => resolvedColour(`var(${name})`)

function seriesOf(one: Columns['series'][number], newest: number, ground: string): uPlot.Series {
  const { colour, dash } = lineStyle(one.attempt, newest)
  const stroke = resolvedColour(colour)
  return {
    label: `attempt ${one.attempt}`,
    stroke,
    width: one.rolled_back ? 1 : 2,
    dash: one.rolled_back ? [2, 4] : dash,
    spanGaps: true,
    points: one.rolled_back ? { show: true, size: 6, fill: ground, stroke } : { size: 4, fill: stroke },
  }
}

/** A vertical line at the step of a mark. */
function mark(plot: uPlot, step: number, colour: string, { dash, height }: { dash: number[]; height: number }): void {
  const { ctx, bbox } = plot
  const x = Math.round(plot.valToPos(step, 'x', true))
  if (x < bbox.left || x > bbox.left + bbox.width) return
  ctx.save()
  ctx.strokeStyle = colour
  ctx.setLineDash(dash)
  ctx.lineWidth = devicePixelRatio
  ctx.beginPath()
  ctx.moveTo(x, bbox.top + bbox.height * (1 - height))
  ctx.lineTo(x, bbox.top + bbox.height)
  ctx.stroke()
  ctx.restore()
}
