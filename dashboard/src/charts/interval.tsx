// One estimate per zone with its 90 % confidence interval.

import { measured } from '../format'
import { roundTicks } from './scale'
import { useWidth } from './width'

export interface Estimate {
  name: string
  value: number | null
  low: number | null
  high: number | null
}

const ROW = 28
const FOOT = 22

export function Intervals({ estimates, unit, label }: { estimates: Estimate[]; unit: string; label: string }) {
  const [box, width] = useWidth<HTMLDivElement>()
  const left = width < 480 ? 96 : 200
  const room = Math.max(1, width - left - 16)
  const most = Math.max(1, ...estimates.map((one) => one.high ?? 0))
  const x = (value: number) => left + (room * value) / most
  const height = estimates.length * ROW + FOOT
  return (
    <div ref={box}>
      <svg className="intervals" width={width} height={height} role="img" aria-label={label}>
        {roundTicks(most).map((tick) => (
          <g key={tick}>
            <line className="grid" x1={x(tick)} x2={x(tick)} y1={0} y2={height - FOOT} />
            <text className="tick" x={x(tick)} y={height - 6} textAnchor="middle">{measured(tick)} h</text>
          </g>
        ))}
        {estimates.map(({ name, value, low, high }, row) => (
          <g key={name} transform={`translate(0 ${row * ROW + ROW / 2})`}>
            <text className="lane" x={0} y={4}>{width < 480 ? name.split('/').at(-1) : name}</text>
            {value !== null && low !== null && high !== null ? (
              <>
                <line className="whisker" x1={x(low)} x2={x(high)} />
                <line className="whisker" x1={x(low)} x2={x(low)} y1={-4} y2={4} />
                <line className="whisker" x1={x(high)} x2={x(high)} y1={-4} y2={4} />
                <circle className="estimate" cx={x(value)} r={4.5} />
                <title>{`${name}: ${measured(value)} ${unit}, 90 % CI ${measured(low)} to ${measured(high)}`}</title>
              </>
            ) : (
              <text className="tick" x={left + 6} y={4}>fewer than 5 preemptions</text>
            )}
          </g>
        ))}
      </svg>
    </div>
  )
}
