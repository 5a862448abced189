// Attempts over time, one lane each: phases by colour, hatch and word; checkpoints as ticks; what was taken as marks.

import { useId, useState, type PointerEvent } from 'react'
import { duration, many, timeOfDay } from '../format'
import { usePreferences } from '../preferences'
import { PHASES, type Phase } from '../vocabulary'
import { ticksOf, type Lane, type Mark, type Span, type Window } from './lanes'
import { useWidth } from './width'

const LANE = 30
const BAR = 16
const AXIS = 22
const LABEL = 118
/** Shorter spans are drawn so long, that they can be seen. */
const LEAST = 1.5

interface SwimlaneProps {
  lanes: Lane[]
  window: Window
  zoom: (window: Window | null) => void
}

export function Swimlane({ lanes, window, zoom }: SwimlaneProps) {
  const { clock } = usePreferences()
  const [box, width] = useWidth<HTMLDivElement>()
  const [drag, setDrag] = useState<[number, number] | null>(null)
  const label = width < 560 ? 34 : LABEL
  const inner = Math.max(1, width - label - 4)
  const scale = (at: number) => label + (inner * (at - window.from)) / (window.to - window.from)
  const moment = (x: number) => window.from + ((x - label) / inner) * (window.to - window.from)
  const height = lanes.length * LANE + AXIS
  const x_of = (event: PointerEvent<SVGSVGElement>) =>
    Math.min(width - 4, Math.max(label, event.clientX - event.currentTarget.getBoundingClientRect().left))
  const release = () => {
    if (drag && Math.abs(drag[1] - drag[0]) > 6)
      zoom({ from: moment(Math.min(...drag)), to: moment(Math.max(...drag)) })
    setDrag(null)
  }
  const ticks = ticksOf(window, Math.max(2, inner / 90))
  return (
    <div ref={box} className="swimlane">
      <svg
        width={width}
        height={height}
        role="img"
        aria-label={`Timeline of ${many(lanes.length, 'attempt')}; the table below has the same in words`}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId)
          setDrag([x_of(event), x_of(event)])
        }}
        onPointerMove={(event) => drag && setDrag([drag[0], x_of(event)])}
        onPointerUp={release}
        onDoubleClick={() => zoom(null)}
      >
        {ticks.map((at) => (
          <g key={at}>
            <line className="grid" x1={scale(at)} x2={scale(at)} y1={0} y2={height - AXIS + 4} />
            <text className="tick" x={scale(at)} y={height - 5} textAnchor={scale(at) > width - 32 ? 'end' : 'middle'}>
              {timeOfDay(at, clock).slice(0, window.to - window.from < 600_000 ? 8 : 5)}
            </text>
          </g>
        ))}
        <svg x={label} y={0} width={inner + 4} height={height - AXIS} viewBox={`${label} 0 ${inner + 4} ${height - AXIS}`}>
          {lanes.map((lane, row) => (
            <g key={lane.attempt.attempt}>
              {lane.spans.map((span) => (
                <Bar key={span.phase} span={span} y={row * LANE + (LANE - BAR) / 2} scale={scale} />
              ))}
              {lane.marks.map((mark, at) => (
                <Sign key={at} mark={mark} x={scale(mark.at)} y={row * LANE} />
              ))}
            </g>
          ))}
          {drag && <rect className="brush" x={Math.min(...drag)} y={0} width={Math.abs(drag[1] - drag[0])} height={height} />}
        </svg>
        {lanes.map((lane, row) => (
          <text key={lane.attempt.attempt} className="lane" x={0} y={row * LANE + LANE / 2 + 4}>
            <tspan className="strong">{lane.attempt.attempt}</tspan>
            {label === LABEL && <tspan dx="8">{lane.attempt.zone.slice(0, 14)}</tspan>}
          </text>
        ))}
      </svg>
    </div>
  )
}

function Bar({ span, y, scale }: { span: Span; y: number; scale: (at: number) => number }) {
  const x = scale(span.from)
  return (
    <rect className={`phase ${span.phase}`} x={x} y={y} width={Math.max(LEAST, scale(span.to) - x)} height={BAR}>
      <title>{`${PHASES[span.phase].word}: ${duration(span.to - span.from)}`}</title>
    </rect>
  )
}

function Sign({ mark, x, y }: { mark: Mark; x: number; y: number }) {
  const top = y + (LANE - BAR) / 2
  return (
    <g className={`sign ${mark.kind}`}>
      {mark.kind === 'checkpoint' && <line x1={x} x2={x} y1={top - 4} y2={top + BAR} />}
      {mark.kind === 'notice' && <path d={`M${x},${top} l-4,-6 h8 z`} />}
      {mark.kind === 'loss' && <path d={`M${x - 4},${y + LANE / 2 - 4} l8,8 m0,-8 l-8,8`} />}
      <title>{mark.words}</title>
    </g>
  )
}

/** The fills of phases that are hatched, once for the whole page. */
export function Hatches() {
  return (
    <svg className="unseen" aria-hidden="true">
    <defs>
      <pattern id="hatch-lost" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
        <rect className="hatch-ground" width="6" height="6" />
        <rect className="hatch-line" width="3" height="6" />
      </pattern>
      <pattern id="hatch-waiting" width="5" height="5" patternUnits="userSpaceOnUse">
        <circle className="hatch-dot" cx="2.5" cy="2.5" r="1" />
      </pattern>
    </defs>
    </svg>
  )
}

/** The same without words, for a row of a table. */
export function Miniature({ lanes, window }: { lanes: Lane[]; window: Window }) {
  const id = useId()
  const width = 160
  const scale = (at: number) => (width * (at - window.from)) / (window.to - window.from)
  const losses = lanes.filter((lane) => lane.attempt.cause !== null).length
  return (
    <svg className="miniature" viewBox={`0 0 ${width} 14`} role="img" aria-labelledby={id}>
      <title id={id}>{`${many(lanes.length, 'attempt')}, ${losses} lost`}</title>
      {lanes.flatMap((lane) =>
        lane.spans.map((span) => (
          <Bar key={`${lane.attempt.attempt}${span.phase}`} span={span} y={-1} scale={scale} />
        )),
      )}
    </svg>
  )
}

export function PhaseKey({ phases }: { phases: Phase[] }) {
  return (
    <ul className="key">
      {phases.map((name) => (
        <li key={name} title={PHASES[name].means}>
          <svg width="14" height="12" aria-hidden="true">
            <rect className={`phase ${name}`} width="14" height="12" />
          </svg>
          {PHASES[name].word}
        </li>
      ))}
    </ul>
  )
}

export function MarkKey() {
  return (
    <ul className="key">
      <li>
        <svg width="8" height="14" aria-hidden="true" className="sign checkpoint"><line x1="4" x2="4" y1="0" y2="14" /></svg>
        Checkpoint
      </li>
      <li>
        <svg width="12" height="12" aria-hidden="true" className="sign notice"><path d="M6,9 l-4,-6 h8 z" /></svg>
        Notice
      </li>
      <li>
        <svg width="12" height="12" aria-hidden="true" className="sign loss"><path d="M2,2 l8,8 m0,-8 l-8,8" /></svg>
        Nodes lost
      </li>
    </ul>
  )
}
