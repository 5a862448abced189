// Spot prices over time by placement, below the on-demand price.

import type { PriceHistory, PriceSeries } from '../api/types'
import { money, moneyTick, shortDay, zoneOf } from '../format'
import { usePreferences } from '../preferences'
import { ticksOf } from './attempt-lanes'
import { stepsOf } from './price-series'
import { roundTicks } from './scale'
import { useWidth } from './width'

const HEIGHT = 260
const FOOT = 24
const LEFT = 64
/** Line styles: six colours and dashes, each with three widths. */
const STYLES = 18

export const placeOf = ({ now }: PriceSeries): string => [now.cloud, now.region, now.zone].filter(Boolean).join('/')

const strokeOf = (at: number): string => `stroke-${(at % 6) + 1} width-${Math.floor((at % STYLES) / 6) + 1}`

export function PriceChart({ history }: { history: PriceHistory }) {
  const [box, width] = useWidth<HTMLDivElement>()
  const { clock } = usePreferences()
  const [from, to] = [Date.parse(history.since), Date.parse(history.until)]
  const full = [...new Set(history.series.map(({ now }) => now.on_demand_micros_per_hour ?? 0))].filter(Boolean)
  const most = 1.05 * Math.max(1, ...full, ...history.series.map((one) => one.highest_micros_per_hour ?? one.now.spot_micros_per_hour ?? 0))
  const ticks = roundTicks(most / 1e6)
  const format = moneyTick(ticks.map((usd) => usd * 1e6))
  const x = (at: number) => LEFT + ((width - LEFT - 12) * (at - from)) / Math.max(1, to - from)
  const y = (micros: number) => 8 + (HEIGHT - FOOT - 8) * (1 - micros / most)
  return (
    <div ref={box}>
      <svg className="prices" width={width} height={HEIGHT} role="img" aria-label={`Spot prices of ${history.series.length} placements over time, below the on-demand price; the table below has the values`}>
        {ticks.map((usd) => (
          <g key={usd}>
            <line className="grid" x1={LEFT} x2={width - 12} y1={y(usd * 1e6)} y2={y(usd * 1e6)} />
            <text className="tick" x={LEFT - 6} y={y(usd * 1e6) + 4} textAnchor="end">{format(usd * 1e6)}</text>
          </g>
        ))}
        {ticksOf({ from, to }, Math.max(2, width / 72), clock).map((at) => (
          <text key={at} className="tick" x={x(at)} y={HEIGHT - 6} textAnchor="middle">{shortDay(at, clock)}</text>
        ))}
        <text className="tick" x={0} y={HEIGHT - 6}>{zoneOf(to, clock)}</text>
        {full.map((micros) => (
          <line key={micros} className="money-on-demand" x1={LEFT} x2={width - 12} y1={y(micros)} y2={y(micros)}><title>{`on demand ${money(micros)}/h`}</title></line>
        ))}
        {history.series.map((one, at) => (
          <path key={`${placeOf(one)} ${one.now.instance_type}`} className={`price ${strokeOf(at)}`} d={stepsOf(one, x, y, to)}>
            <title>{`${placeOf(one)}: ${money(one.now.spot_micros_per_hour ?? 0)}/h now`}</title>
          </path>
        ))}
      </svg>
    </div>
  )
}

export function PriceLegend({ history }: { history: PriceHistory }) {
  return (
    <ul className="key">
      {history.series.map((one, at) => (
        <li key={`${placeOf(one)} ${one.now.instance_type}`}>
          <svg width="22" height="12" aria-hidden="true"><line className={strokeOf(at)} x1="0" x2="22" y1="6" y2="6" /></svg>
          {placeOf(one)}{one.now.is_old && ' (old)'}
        </li>
      ))}
      <li><svg width="22" height="12" aria-hidden="true"><line className="money-on-demand" x1="0" x2="22" y1="6" y2="6" /></svg>On demand</li>
    </ul>
  )
}
