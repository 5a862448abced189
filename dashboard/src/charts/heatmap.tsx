// Preemption rates by zone and hour. Text and colour of a cell are its rate; a dotted cell has too few preemptions for one.

import type { Losses } from '../api/types'
import { measured } from '../format'
import { fieldWords, hourWords, levelOf, LEVELS, mostOf } from './price-series'
import { useWidth } from './width'

const ROW = 34
const HEAD = 20
const GAP = 2

interface HeatmapProps {
  losses: Losses[]
  /** Hours per cell. */
  hours: number
}

export function Heatmap({ losses, hours }: HeatmapProps) {
  const [box, width] = useWidth<HTMLDivElement>()
  const zones = [...new Set(losses.map((one) => one.zone ?? ''))].sort()
  const found = new Map(losses.map((one) => [`${one.zone} ${one.hour}`, one]))
  const label = width < 640 ? 92 : 210
  const fields = 24 / hours
  const field = Math.max(6, (width - label) / fields)
  const most = mostOf(losses)
  const every = Math.max(1, Math.ceil(36 / field))
  return (
    <div ref={box} className="heat">
      <svg width={width} height={HEAD + zones.length * ROW} role="img"
        aria-label={`Preemptions per 100 node-hours in ${zones.length} zones, by hour of the day in UTC; the table below has the values`}>
        {Array.from({ length: fields }, (_, at) => at % every === 0 && (
          <text key={at} className="tick" x={label + at * field + 2} y={HEAD - 7}>{hourWords(at * hours)}:00</text>
        ))}
        <text className="tick" x={0} y={HEAD - 7}>Hour, UTC</text>
        {zones.map((zone, row) => (
          <g key={zone} transform={`translate(0 ${HEAD + row * ROW})`}>
            <text className="lane" x={0} y={ROW / 2 + 4}>{width < 640 ? zone.split('/').at(-1) : zone}</text>
            {Array.from({ length: fields }, (_, at) => (
              <Cell key={at} x={label + at * field} width={field - GAP} most={most} losses={found.get(`${zone} ${at * hours}`)} />
            ))}
          </g>
        ))}
      </svg>
    </div>
  )
}

interface CellProps {
  x: number
  width: number
  most: number
  losses: Losses | undefined
}

function Cell({ x, width, most, losses }: CellProps) {
  if (!losses) return <rect className="heat-none" x={x} width={width} height={ROW - GAP} />
  const rate = losses.per_100_node_hours
  const level = levelOf(rate, most)
  return (
    <g>
      <rect className={level === 0 ? 'heat-few' : `heat-${level}`} x={x} width={width} height={ROW - GAP} />
      {width > 26 && rate !== null && (
        <text className="heat-rate" x={x + width / 2} y={ROW / 2 + 3} textAnchor="middle">{rate.toFixed(rate < 9.95 ? 1 : 0)}</text>
      )}
      <title>{fieldWords(losses)}</title>
    </g>
  )
}

export function HeatmapLegend({ losses }: { losses: Losses[] }) {
  const most = mostOf(losses)
  return (
    <ul className="key">
      <li><svg width="14" height="12" aria-hidden="true"><rect className="heat-none" width="14" height="12" /></svg>No nodes</li>
      <li><svg width="14" height="12" aria-hidden="true"><rect className="heat-few" width="14" height="12" /></svg>Fewer than 5 preemptions</li>
      {most > 0 && (
        <li>
          <svg width={14 * LEVELS} height="12" aria-hidden="true">
            {Array.from({ length: LEVELS }, (_, at) => <rect key={at} className={`heat-${at + 1}`} x={14 * at} width="13" height="12" />)}
          </svg>
          Up to {measured(most)} preemptions per 100 node-hours
        </li>
      )}
    </ul>
  )
}
