// Forecast quantities as ranges from P10 to P90 around P50, on one scale, with vertical lines at given values.

import { extentOfRanges, sideOf, type Limit, type Range } from './range-scale'
import { useWidth } from './width'

interface RangesProps {
  ranges: Range[]
  limits: Limit[]
  label: string
  format: (value: number) => string
}

const ROW = 30
const HEAD = 20
const RIM = 8
/** Mean width of a character of the labels. */
const CHARACTER = 6.2

export function Ranges({ ranges, limits, label, format }: RangesProps) {
  const [box, width] = useWidth<HTMLDivElement>()
  const left = width < 480 ? 106 : 128
  const extent = extentOfRanges(ranges, limits)
  const { low, high } = extent
  const room = Math.max(1, width - left - 2 * RIM)
  const x = (value: number) => left + RIM + (room * (value - low)) / Math.max(1e-9, high - low)
  const height = HEAD * limits.length + ROW * ranges.length
  return (
    <div ref={box}>
      <svg className="ranges" width={width} height={height} role="img" aria-label={`${label}: ${[...ranges.map((one) => rangeWords(one, format)), ...limits.map(({ name, value }) => `${name} ${format(value)}`)].join('; ')}`}>
        {limits.map(({ name, value, is_actual }, row) => {
          const side = sideOf(value, extent)
          const words = `${side === 'left' ? '← ' : ''}${name} ${format(value)}${side === 'right' ? ' →' : ''}`
          const at = x(Math.max(low, Math.min(high, value)))
          const has_room = at + words.length * CHARACTER < width
          return (
            <g key={name}>
              {side === null && <line className={is_actual ? 'actual' : 'limit'} x1={at} x2={at} y1={row * HEAD + 4} y2={height} />}
              <text className="tick" x={at + (has_room ? 4 : -4)} y={row * HEAD + 14} textAnchor={has_room ? 'start' : 'end'}>{words}</text>
            </g>
          )
        })}
        {ranges.map((range, row) => (
          <g key={range.name} transform={`translate(0 ${HEAD * limits.length + row * ROW + ROW / 2})`}>
            <text className="lane" x={0} y={4}>{range.name}</text>
            <rect className="range" x={x(range.p10)} y={-6} width={Math.max(2, x(range.p90) - x(range.p10))} height={12} rx={3} />
            <line className="middle" x1={x(range.p50)} x2={x(range.p50)} y1={-9} y2={9} />
            <title>{rangeWords(range, format)}</title>
          </g>
        ))}
      </svg>
    </div>
  )
}

const rangeWords = ({ name, p10, p50, p90 }: Range, format: (value: number) => string): string => `${name} ${format(p50)}, ${format(p10)} to ${format(p90)}`

/** Bars are P10 to P90, the line in them is P50. */
export function RangeLegend() {
  return (
    <ul className="key ranges">
      <li title="80 of 100 simulated runs end in it"><svg width="18" height="12" aria-hidden="true"><rect className="range" width="18" height="12" rx="3" /></svg>P10 to P90</li>
      <li title="half of the simulated runs end below, half above"><svg width="6" height="14" aria-hidden="true"><line className="middle" x1="3" x2="3" y1="0" y2="14" /></svg>P50</li>
    </ul>
  )
}
