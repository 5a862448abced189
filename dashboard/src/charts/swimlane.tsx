// Attempts and node groups over time, one lane each: phases as coloured or hatched bars, events as marks.

import { useId } from 'react'
import { many, shortDay, timeOfDay, zoneOf, type Clock } from '../format'
import { usePreferences } from '../preferences'
import { MARKS, PHASES, type MarkKind, type Phase } from '../phases'
import { Bands, BAR, LEAST } from './capacity-bands'
import { frameOf, useBrush, type PageFrame } from './frame'
import { spanWords, ticksOf, type Lane, type Span, type Window } from './attempt-lanes'
import { GROUP_PHASES, shortZone, type GroupLane, type GroupPhase } from './group-lanes'
import type { Band } from './plan-bands'
import { useWidth } from './width'

const LANE = 30
export const AXIS = 22
/** Height of the lane of a group, which has two lines of text on wide screens. */
const GROUP_LANE = 36
/** Height of the heading above the lanes of node groups. */
const HEADING = 22
const DAY_MS = 86_400_000

interface SwimlaneProps {
  lanes: Lane[]
  /** Node groups of the job file; empty without any. */
  groups: GroupLane[]
  /** Choices of the job's plan; empty without a plan. */
  choices: Band[]
  /** The zoomed time window for the accessible name; empty for the whole job. */
  part: string
  window: Window
  zoom: (window: Window | null) => void
}

export function Swimlane({ lanes, groups, choices, part, window, zoom }: SwimlaneProps) {
  const [box, width] = useWidth<HTMLDivElement>()
  const frame = frameOf(width, window)
  const { handlers, pulled } = useBrush(frame, zoom)
  const first = choices.length > 0 ? LANE : 0
  const top = first + lanes.length * LANE + (groups.length > 0 ? HEADING : 0)
  const step = frame.is_narrow ? LANE : GROUP_LANE
  const height = top + groups.length * step + AXIS
  const names = [many(lanes.length, 'attempt'), ...(choices.length > 0 ? [many(choices.length, 'choice')] : []), ...(groups.length > 0 ? [many(groups.length, 'node group')] : [])]
  const { left, inner, x } = frame
  return (
    <div ref={box} className="swimlane">
      <svg
        width={width}
        height={height}
        role="img"
        aria-label={`Timeline of ${names.join(' and ')}${part}; the ${groups.length > 0 ? 'tables below have' : 'table below has'} the same in words`}
        {...handlers}
      >
        <TimeAxis frame={frame} height={height} />
        <svg x={left} y={0} width={inner + 4} height={height - AXIS} viewBox={`${left} 0 ${inner + 4} ${height - AXIS}`}>
          <Bands bands={choices} frame={frame} y={(LANE - BAR) / 2} />
          {lanes.map((lane, row) => (
            <g key={lane.attempt.attempt}>
              {lane.spans.map((span) => (
                <Bar key={span.phase} span={span} words={spanWords(span, lane.attempt)} y={first + row * LANE + (LANE - BAR) / 2} scale={x} />
              ))}
              {lane.marks.map((mark, at) => (
                <MarkSymbol key={at} sign={symbolOf(mark.kind)} words={mark.words} x={x(mark.at)} y={first + row * LANE} />
              ))}
            </g>
          ))}
          {groups.map(({ group, bars, marks }, row) => (
            <g key={group.name} className="group-lane">
              {bars.map((bar) => (
                <Bar key={bar.from} span={bar} words={bar.words} y={top + row * step + (step - BAR) / 2} scale={x} />
              ))}
              {marks.map((mark, at) => (
                <MarkSymbol key={at} sign={mark.sign === 'return' ? 'resume' : 'loss'} words={mark.words} x={x(mark.at)} y={top + row * step + (step - LANE) / 2} />
              ))}
            </g>
          ))}
          {pulled && <rect className="brush" {...pulled} y={0} height={height} />}
        </svg>
        {choices.length > 0 && <text className="lane" x={0} y={LANE / 2 + 4}>Plan</text>}
        {lanes.map((lane, row) => (
          <text key={lane.attempt.attempt} className="lane" x={0} y={first + row * LANE + LANE / 2 + 4}>
            <tspan className="strong">{lane.attempt.attempt}</tspan>
            {!frame.is_narrow && <tspan dx="8">{groups.length > 0 ? many(groups.length, 'group') : placeOf(lane.attempt.zone)}</tspan>}
          </text>
        ))}
        {groups.length > 0 && <text className="lane" x={0} y={top - 6}>Node groups</text>}
        {groups.map((lane, row) => (
          <GroupLabel key={lane.group.name} lane={lane} y={top + row * step + step / 2} is_narrow={frame.is_narrow} />
        ))}
      </svg>
    </div>
  )
}

/** The zone without cloud and region, cut to the width of the label. */
const placeOf = (zone: string): string => shortZone(zone).slice(0, 14)

const cut = (name: string, most: number): string => (name.length > most ? `${name.slice(0, most - 1)}…` : name)

/** The name of a group above its newest zone, around the middle of its lane. */
function GroupLabel({ lane: { group }, y, is_narrow }: { lane: GroupLane; y: number; is_narrow: boolean }) {
  const zone = group.spans.findLast((span) => span.zone)?.zone
  return (
    <text className="lane" y={is_narrow || !zone ? y + 4 : y - 2}>
      <title>{zone ? `${group.name}, newest zone ${zone}` : group.name}</title>
      <tspan className="strong" x={0}>{cut(group.name, is_narrow ? 8 : 16)}</tspan>
      {!is_narrow && zone && <tspan x={0} dy="13">{placeOf(zone)}</tspan>}
    </text>
  )
}

/** Round times below a chart, with a grid line each. Ticks at midnight show the date; the zone is at the left. */
export function TimeAxis({ frame, height }: { frame: PageFrame; height: number }) {
  const { clock } = usePreferences()
  const { window, width, x } = frame
  const ticks = ticksOf(window, Math.max(2, frame.inner / 90), clock)
  const label = (at: number) => tickLabel(at, window, clock)
  return (
    <>
      <text className="tick" x={frame.left - 8} y={height - 5} textAnchor="end">{`${frame.is_narrow ? '' : `${shortDay(window.from, clock)}, `}${zoneOf(window.from, clock)}`}</text>
      {ticks.map((at) => (
        <g key={at}>
          <line className="grid" x1={x(at)} x2={x(at)} y1={0} y2={height - AXIS + 4} />
          <text className="tick" x={x(at)} y={height - 5} textAnchor={x(at) > width - 32 ? 'end' : x(at) < frame.left + 20 ? 'start' : 'middle'}>{label(at)}</text>
        </g>
      ))}
    </>
  )
}

/** The day at midnight and on long axes, else the time of day. */
function tickLabel(at: number, { from, to }: Window, clock: Clock): string {
  const time = timeOfDay(at, clock)
  if (to - from > 3 * DAY_MS || time === '00:00:00') return shortDay(at, clock)
  return time.slice(0, to - from < 600_000 ? 8 : 5)
}

interface BarProps {
  span: Omit<Span, 'phase'> & { phase: Phase | GroupPhase }
  words: string
  y: number
  scale: (at: number) => number
}

function Bar({ span, words, y, scale }: BarProps) {
  const x = scale(span.from)
  return (
    <rect className={`phase ${span.phase}`} x={x} y={y} width={Math.max(LEAST, scale(span.to) - x)} height={BAR}>
      <title>{words}</title>
    </rect>
  )
}

/** All losses share one symbol; tooltip and legend name the kind. */
const symbolOf = (kind: MarkKind): string => (['checkpoint', 'notice', 'resume'].includes(kind) ? kind : 'loss')

function MarkSymbol({ sign, words, x, y }: { sign: string; words: string; x: number; y: number }) {
  const top = y + (LANE - BAR) / 2
  return (
    <g className={`mark ${sign}`}>
      {sign === 'checkpoint' && <line x1={x} x2={x} y1={top - 4} y2={top + 4} />}
      {sign === 'notice' && <path d={`M${x},${top} l-4,-6 h8 z`} />}
      {sign === 'resume' && <path d={`M${x - 3},${y + LANE / 2 - 4} l6,4 l-6,4 z`} />}
      {sign === 'loss' && <path d={`M${x - 4},${y + LANE / 2 - 4} l8,8 m0,-8 l-8,8`} />}
      <title>{words}</title>
    </g>
  )
}

/** Line patterns of stacked parts, so that they differ by more than colour. */
const PATTERNS = ['', 'M0,6 L6,0', 'M3,0 V6', 'M0,3 H6', 'M2,3 h2 M3,2 v2', 'M0,0 L6,6']

/** The SVG fill patterns of all charts, once per page. */
export function FillPatterns() {
  return (
    <svg className="visually-hidden" aria-hidden="true">
    <defs>
      <pattern id="hatch-lost" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
        <rect className="hatch-ground" width="6" height="6" />
        <rect className="hatch-line" width="3" height="6" />
      </pattern>
      <pattern id="hatch-missing" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">
        <rect className="hatch-ground" width="6" height="6" />
        <rect className="missing-line" width="1.5" height="6" />
      </pattern>
      <pattern id="hatch-on-demand" width="6" height="6" patternUnits="userSpaceOnUse">
        <rect className="node-ground" width="6" height="6" />
        <rect className="hatch-ground" width="1.5" height="6" />
      </pattern>
      <pattern id="hatch-waiting" width="5" height="5" patternUnits="userSpaceOnUse">
        <circle className="hatch-dot" cx="2.5" cy="2.5" r="1" />
      </pattern>
      {PATTERNS.map((path, at) => (
        <pattern key={at} id={`weave-${at + 1}`} width="6" height="6" patternUnits="userSpaceOnUse">
          <rect className={`weave-ground-${at + 1}`} width="6" height="6" />
          <path className="weave-line" d={path} />
        </pattern>
      ))}
    </defs>
    </svg>
  )
}

/** A swimlane without text, for a table row. */
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
          <Bar key={`${lane.attempt.attempt}${span.phase}`} span={span} words={spanWords(span, lane.attempt)} y={-1} scale={scale} />
        )),
      )}
    </svg>
  )
}

export function PhaseLegend({ phases }: { phases: Phase[] }) {
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

/** Legend of the parts and marks of node groups that occur. */
export function GroupLegend({ lanes }: { lanes: GroupLane[] }) {
  const there = new Set(lanes.flatMap((lane) => lane.bars.map((bar) => bar.phase)))
  const returned = lanes.some((lane) => lane.marks.some((mark) => mark.sign === 'return'))
  return (
    <ul className="key" aria-label="Legend of node groups">
      {(Object.keys(GROUP_PHASES) as GroupPhase[]).filter((name) => name !== 'waiting' && there.has(name)).map((name) => (
        <li key={name} title={GROUP_PHASES[name].means}>
          <svg width="14" height="12" aria-hidden="true">
            <rect className={`phase ${name}`} width="14" height="12" />
          </svg>
          {GROUP_PHASES[name].word}
        </li>
      ))}
      {returned && (
        <li title="a lost group has nodes again">
          <svg width="12" height="14" aria-hidden="true" className="mark resume"><path d={RETURN} /></svg>
          Return of a group
        </li>
      )}
    </ul>
  )
}

/** With the first letter in upper case. */
export const titled = (words: string): string => words.slice(0, 1).toUpperCase() + words.slice(1)

/** A triangle to the right. */
const RETURN = 'M3,2 l6,4 l-6,4 z'
const MARK_SYMBOLS: [string, string][] = [['checkpoint', 'M4,0 V14'], ['notice', 'M6,9 l-4,-6 h8 z'], ['resume', RETURN], ['loss', 'M2,2 l8,8 m0,-8 l-8,8']]
const ORDER: MarkKind[] = ['checkpoint', 'notice', 'resume', 'preemption', 'loss', 'failure', 'pause', 'move']

/** Legend of the marks that occur. */
export function MarkLegend({ lanes }: { lanes: Lane[] }) {
  const there = new Set(lanes.flatMap((lane) => lane.marks.map((mark) => mark.kind)))
  return (
    <ul className="key">
      {MARK_SYMBOLS.map(([sign, path]) => {
        const kinds = ORDER.filter((kind) => there.has(kind) && symbolOf(kind) === sign)
        if (kinds.length === 0) return null
        return (
          <li key={sign} title={kinds.map((kind) => `${MARKS[kind].one}: ${MARKS[kind].means.split(';')[0]}`).join('; ')}>
            <svg width="12" height="14" aria-hidden="true" className={`mark ${sign}`}><path d={path} /></svg>
            {titled(kinds.map((kind) => MARKS[kind].one).join(', '))}
          </li>
        )
      })}
    </ul>
  )
}
