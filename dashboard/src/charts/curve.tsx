// A curve over steps: one colour and one dash for each attempt, what was rolled back hollow, losses of nodes and resumes as lines.

import { useEffect, useRef, useState } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { count, many, measured } from '../format'
import { usePreferences } from '../preferences'
import { MARKS } from '../vocabulary'
import type { Columns, StepMark } from './series'
import { LEAST_PULL } from './frame'
import { useWidth } from './width'

const HEIGHT = 200
const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3], [4, 2], [1, 2]]
const COLOURS = 6

/** Lines of marks, as the style sheet has them for the key. */
const LINES: Record<StepMark['kind'], { ink: string; dash: number[]; height: number }> = {
  preemption: { ink: '--plot-loss', dash: [4, 3], height: 1 },
  loss: { ink: '--plot-loss', dash: [1, 3], height: 1 },
  failure: { ink: '--plot-loss', dash: [8, 2, 2, 2], height: 1 },
  pause: { ink: '--plot-quiet', dash: [4, 3], height: 1 },
  // Short, as it is often at the step of the loss before it.
  resume: { ink: '--good', dash: [], height: 0.2 },
}

interface CurveProps {
  title: string
  columns: Columns
  marks: StepMark[]
  /** What a pull across it and a double click do: the steps that were pulled over; null for all of them. */
  zoom: (steps: [number, number] | null) => void
  /** Whether its scale begins at 0, as that of a rate does. */
  from_zero: boolean
}

export default function Curve({ title, columns, marks, from_zero, zoom }: CurveProps) {
  const [box, width] = useWidth<HTMLDivElement>()
  const { colours } = usePreferences()
  const place = useRef<HTMLDivElement>(null)
  const [hovered, setHovered] = useState<number | null>(null)
  const newest = useRef(zoom)
  newest.current = zoom
  useEffect(() => {
    if (!place.current || width === 0) return
    const plot = new uPlot(options(width, { columns, marks, from_zero, zoom: (steps) => newest.current(steps) }, setHovered), data(columns), place.current)
    return () => plot.destroy()
    // `colours` says when those that were read from the style sheet are others.
  }, [width, columns, marks, from_zero, colours])
  const last = columns.series.at(-1)?.values.findLast((value) => value !== null)
  const words = `${title} over ${columns.steps.length} steps${last == null ? '' : `, ${measured(last)} at the last`}${counted(marks)}`
  return (
    <figure className="curve" ref={box}>
      <figcaption>
        {title}
        {columns.not_finite > 0 && <span>, {count(columns.not_finite)} not finite ✕</span>}
        <output className="number">{told(columns, hovered)}</output>
      </figcaption>
      <div ref={place} role="img" aria-label={words} className="plot" />
    </figure>
  )
}

/** How often each kind of mark is drawn, in words. */
function counted(marks: StepMark[]): string {
  const kinds = [...new Set(marks.map((mark) => mark.kind))]
  return kinds.map((kind) => `, ${many(marks.filter((mark) => mark.kind === kind).length, MARKS[kind].one, MARKS[kind].more)}`).join('')
}

const data = ({ steps, series }: Columns): uPlot.AlignedData => [steps, ...series.map((one) => one.values)]

/** What the curve has where it is pointed at, else at its last step. */
function told({ steps, series }: Columns, hovered: number | null): string {
  const at = hovered ?? steps.length - 1
  const values = series.flatMap(({ attempt, rolled_back, values }) => {
    const value = values[at]
    return value == null ? [] : [`${measured(value)} in attempt ${attempt}${rolled_back ? ', rolled back' : ''}`]
  })
  return values.length > 0 ? `logged at step ${count(steps[at] ?? 0)}: ${values.join('; ')}` : ''
}

function options(
  width: number,
  { columns, marks, from_zero, zoom }: Omit<CurveProps, 'title'>,
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
    series: [{}, ...columns.series.map((one) => seriesOf(one, ground))],
    hooks: {
      setCursor: [(plot) => hover(plot.cursor.idx ?? null)],
      setSelect: [(plot) => pulled(plot, zoom)],
      draw: [(plot) => marks.forEach(({ step, kind }) => mark(plot, step, inks[kind] ?? '', LINES[kind]))],
    },
  }
}

/** Steps are another axis than time: whoever has their moments zooms all charts, and this one with them. */
function pulled(plot: uPlot, zoom: CurveProps['zoom']): void {
  const { left, width } = plot.select
  if (width <= LEAST_PULL) return
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false)
  zoom([plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x')])
}

/** A colour of the theme in force, as a canvas takes it, which knows neither variables nor light-dark(). */
function token(name: string): string {
  const sample = document.body.appendChild(document.createElement('i'))
  sample.style.color = `var(${name})`
  const colour = getComputedStyle(sample).color
  sample.remove()
  return colour
}

function seriesOf(one: Columns['series'][number], ground: string): uPlot.Series {
  const at = (one.attempt - 1) % COLOURS
  const stroke = token(`--plot-${at + 1}`)
  return {
    label: `attempt ${one.attempt}`,
    stroke,
    width: one.rolled_back ? 1 : 2,
    dash: one.rolled_back ? [2, 4] : (DASHES[at] ?? []),
    spanGaps: true,
    points: one.rolled_back ? { show: true, size: 6, fill: ground, stroke } : { size: 4, fill: stroke },
  }
}

/** A line at a step at which something happened. */
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
