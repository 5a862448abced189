// The survival curve of attempts beside the exponential curve of a constant rate.

import type { Survival } from '../api/types'
import { duration, measured } from '../format'
import { exponentialPath, lifetimeText, medianOf, pathOf } from './price-series'
import { roundTicks } from './scale'
import { useWidth } from './width'

const HEIGHT = 220
const FOOT = 24
const LEFT = 44
const HOUR_MS = 3_600_000

interface SurvivalProps {
  points: Survival[]
  /** Mean lifetime; null for too few preemptions. */
  mean_hours: number | null
}

export function SurvivalCurve({ points, mean_hours }: SurvivalProps) {
  const [box, width] = useWidth<HTMLDivElement>()
  const longest = Math.max(1, points.at(-1)?.hours ?? 1)
  const x = (hours: number) => LEFT + ((width - LEFT - 12) * hours) / longest
  const y = (share: number) => 8 + (HEIGHT - FOOT - 8) * (1 - share)
  const median = medianOf(points)
  const words = `Survival of attempts up to ${measured(longest)} hours` + (median === null ? '' : `; median lifetime ${lifetimeText(median)}`) + (mean_hours === null ? '' : `; exponential curve with a mean of ${measured(mean_hours)} hours`)
  return (
    <div ref={box}>
      <svg className="survival" width={width} height={HEIGHT} role="img" aria-label={words}>
        {[0, 0.25, 0.5, 0.75, 1].map((share) => (
          <g key={share}>
            <line className="grid" x1={LEFT} x2={width - 12} y1={y(share)} y2={y(share)} />
            <text className="tick" x={LEFT - 6} y={y(share) + 4} textAnchor="end">{100 * share} %</text>
          </g>
        ))}
        {roundTicks(longest).map((tick) => (
          <text key={tick} className="tick" x={x(tick)} y={HEIGHT - 6} textAnchor="middle">{measured(tick)} h</text>
        ))}
        {median !== null && <line className="median" x1={x(median)} x2={x(median)} y1={y(0.5)} y2={y(0)} />}
        {mean_hours !== null && <path className="fading" d={exponentialPath(mean_hours, longest, x, y)} />}
        <path className="curve-line" d={pathOf(points, x, y)} />
        {points.map((point) => (
          <rect key={point.hours} className="touch" x={x(point.hours) - 3} y={y(point.share) - 6} width={6} height={12}>
            <title>{`${Math.round(1000 * point.share) / 10} % last longer than ${duration(point.hours * HOUR_MS)}; ${point.at_risk} at risk, ${point.taken} preempted`}</title>
          </rect>
        ))}
      </svg>
    </div>
  )
}

export function SurvivalLegend() {
  return (
    <ul className="key survival">
      <li><svg width="22" height="10" aria-hidden="true"><line className="curve-line" x1="0" x2="22" y1="5" y2="5" /></svg>Measured</li>
      <li><svg width="22" height="10" aria-hidden="true"><line className="fading" x1="0" x2="22" y1="5" y2="5" /></svg>Exponential, same mean</li>
    </ul>
  )
}
