// A bar chart of counts: a part of each bar is filled, the rest is hatched.

import { count } from '../format'
import { useWidth } from './width'

export interface Bar {
  name: string
  whole: number
  /** Filled part of `whole`. */
  part: number
  title: string
}

const HEIGHT = 180
const FOOT = 24
const HEAD = 18

export function Bars({ bars, label }: { bars: Bar[]; label: string }) {
  const [box, width] = useWidth<HTMLDivElement>()
  const most = Math.max(1, ...bars.map((bar) => bar.whole))
  const slot = width / Math.max(1, bars.length)
  const wide = Math.min(72, slot * 0.7)
  const y = (amount: number) => HEAD + (HEIGHT - FOOT - HEAD) * (1 - amount / most)
  return (
    <div ref={box}>
      <svg className="bars" width={width} height={HEIGHT} role="img" aria-label={label}>
        <line className="grid" x1={0} x2={width} y1={y(0)} y2={y(0)} />
        {bars.map((bar, at) => {
          const x = at * slot + (slot - wide) / 2
          return (
            <g key={bar.name}>
              <rect className="bar-rest" x={x} y={y(bar.whole)} width={wide} height={y(bar.part) - y(bar.whole)} />
              <rect className="bar-part" x={x} y={y(bar.part)} width={wide} height={y(0) - y(bar.part)} />
              <text className="bar-count" x={x + wide / 2} y={y(bar.whole) - 5} textAnchor="middle">{count(bar.whole)}</text>
              <text className="tick" x={x + wide / 2} y={HEIGHT - 7} textAnchor="middle">{bar.name}</text>
              <title>{bar.title}</title>
            </g>
          )
        })}
      </svg>
    </div>
  )
}
