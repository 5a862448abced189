// What nodes have cost as spot, place by place, under what they cost on demand.

import type { PriceHistory, PriceSeries } from '../api/types'
import { dayOf, money } from '../format'
import { usePreferences } from '../preferences'
import { ticksOf } from './lanes'
import { stepsOf } from './market'
import { roundTicks } from './scale'
import { useWidth } from './width'

const HEIGHT = 260
const FOOT = 24
const LEFT = 64
const COLOURS = 6

export const placeOf = ({ now }: PriceSeries): string => [now.cloud, now.region, now.zone].filter(Boolean).join('/')

const inkOf = (at: number): string => `stroke-${(at % COLOURS) + 1}`

export function PriceChart({ told }: { told: PriceHistory }) {
  const [box, width] = useWidth<HTMLDivElement>()
  const { clock } = usePreferences()
  const [from, to] = [Date.parse(told.since), Date.parse(told.until)]
  const full = [...new Set(told.series.map(({ now }) => now.on_demand_micros_per_hour ?? 0))].filter(Boolean)
  const most = 1.05 * Math.max(1, ...full, ...told.series.map((one) => one.highest_micros_per_hour ?? one.now.spot_micros_per_hour ?? 0))
  const x = (at: number) => LEFT + ((width - LEFT - 12) * (at - from)) / Math.max(1, to - from)
  const y = (micros: number) => 8 + (HEIGHT - FOOT - 8) * (1 - micros / most)
  return (
    <div ref={box}>
      <svg className="prices" width={width} height={HEIGHT} role="img" aria-label={`Spot prices of ${told.series.length} places over time, below the price on demand; the table below has the figures`}>
        {roundTicks(most / 1e6).map((usd) => (
          <g key={usd}>
            <line className="grid" x1={LEFT} x2={width - 12} y1={y(usd * 1e6)} y2={y(usd * 1e6)} />
            <text className="tick" x={LEFT - 6} y={y(usd * 1e6) + 4} textAnchor="end">{money(usd * 1e6)}</text>
          </g>
        ))}
        {ticksOf({ from, to }, Math.max(2, width / 72)).map((at) => (
          <text key={at} className="tick" x={x(at)} y={HEIGHT - 6} textAnchor="middle">{dayOf(at, clock).slice(5)}</text>
        ))}
        {full.map((micros) => (
          <line key={micros} className="money-on-demand" x1={LEFT} x2={width - 12} y1={y(micros)} y2={y(micros)}><title>{`on demand ${money(micros)} an hour`}</title></line>
        ))}
        {told.series.map((one, at) => (
          <path key={`${placeOf(one)} ${one.now.instance_type}`} className={`price ${inkOf(at)}`} d={stepsOf(one, x, y, to)}>
            <title>{`${placeOf(one)}: ${money(one.now.spot_micros_per_hour ?? 0)} an hour now`}</title>
          </path>
        ))}
      </svg>
    </div>
  )
}

export function PriceKey({ told }: { told: PriceHistory }) {
  return (
    <ul className="key">
      {told.series.map((one, at) => (
        <li key={`${placeOf(one)} ${one.now.instance_type}`}>
          <svg width="22" height="12" aria-hidden="true"><line className={inkOf(at)} x1="0" x2="22" y1="6" y2="6" /></svg>
          {placeOf(one)}{one.now.is_old && ' (old)'}
        </li>
      ))}
      <li><svg width="22" height="12" aria-hidden="true"><line className="money-on-demand" x1="0" x2="22" y1="6" y2="6" /></svg>On demand</li>
    </ul>
  )
}
