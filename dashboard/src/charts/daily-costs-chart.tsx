// The cost of each day: useful and wasted stacked, with the on-demand price of the same work as a line.

import type { Cost } from '../api/types'
import { dayLabel, many, money, moneyTick } from '../format'
import { daysFrom } from './daily-costs'
import { axisTicks } from './scale'
import { useWidth } from './width'

export const HEIGHT = 170
const FOOT = 22
const LEFT = 64

interface Slots {
  x: (place: number) => number
  y: (micros: number) => number
  bar: number
  slot: number
  /** Days per label. */
  every: number
}

/** Positions of the bars of `days` days. */
export function slotsOf(width: number, days: number, most: number): Slots {
  const room = Math.max(1, width - LEFT)
  const slot = Math.min(56, room / Math.max(1, days))
  const bar = Math.max(2, slot * 0.7)
  return {
    x: (place) => LEFT + place * slot + (slot - bar) / 2,
    y: (micros) => (HEIGHT - FOOT - 8) * (1 - micros / most) + 8,
    bar,
    slot,
    every: Math.ceil(days / Math.max(1, Math.floor(room / 56))),
  }
}

interface DayAxisProps {
  days: string[]
  ticks: number[]
  format: (tick: number) => string
  width: number
  slots: Slots
}

/** Axes of a chart by day: round values at the left, days in UTC below. */
export function DayAxis({ days, ticks, format, width, slots }: DayAxisProps) {
  const { x, y, bar, every } = slots
  return (
    <>
      {ticks.map((tick) => (
        <g key={tick}>
          <line className="grid" x1={LEFT} x2={width} y1={y(tick)} y2={y(tick)} />
          <text className="tick" x={LEFT - 6} y={y(tick) + 4} textAnchor="end">
            {format(tick)}
          </text>
        </g>
      ))}
      <text className="tick" x={0} y={HEIGHT - 5}>UTC</text>
      {days.map((day, place) =>
        place % every === 0 ? (
          <text key={day} className="tick" x={x(place) + bar / 2} y={HEIGHT - 5} textAnchor="middle">
            {dayLabel(day)}
          </text>
        ) : null,
      )}
    </>
  )
}

/** Round amounts, in micro-dollars. */
export const moneyTicks = (most: number): number[] => axisTicks(most / 1e6, 3).map((usd) => usd * 1e6)

export function DailyCostsChart({ costs }: { costs: Cost[] }) {
  const [box, width] = useWidth<HTMLDivElement>()
  const known = new Map(costs.map((cost) => [cost.key, cost]))
  const days = daysFrom(costs.map((cost) => cost.key))
  const most = Math.max(1, ...costs.map((cost) => Math.max(cost.paid_micros, cost.on_demand_micros)))
  const ticks = moneyTicks(most)
  const slots = slotsOf(width, days.length, ticks.at(-1) ?? most)
  return (
    <div ref={box} className="days">
      <svg width={width} height={HEIGHT} role="img" aria-label={`Cost of ${many(days.length, 'day')}, at most ${money(most)} a day; the table has the figures`}>
        <DayAxis days={days} ticks={ticks} format={moneyTick(ticks)} width={width} slots={slots} />
        {days.map((day, place) => {
          const cost = known.get(day)
          return cost && <Day key={day} cost={cost} x={slots.x(place)} bar={slots.bar} y={slots.y} />
        })}
      </svg>
    </div>
  )
}

function Day({ cost, x, bar, y }: { cost: Cost; x: number; bar: number; y: (micros: number) => number }) {
  const measured = cost.paid_micros - cost.micros.unmeasured
  const useful = measured - cost.wasted_micros
  return (
    <g>
      <rect className="money-useful" x={x} y={y(useful)} width={bar} height={Math.max(0, y(0) - y(useful))} />
      <rect className="money-wasted" x={x} y={y(measured)} width={bar} height={Math.max(0, y(useful) - y(measured))} />
      <rect className="phase unmeasured" x={x} y={y(cost.paid_micros)} width={bar} height={Math.max(0, y(measured) - y(cost.paid_micros))} />
      <line className="money-on-demand" x1={x - 2} x2={x + bar + 2} y1={y(cost.on_demand_micros)} y2={y(cost.on_demand_micros)} />
      <title>{`${cost.key}: paid ${money(cost.paid_micros)}, of which wasted ${money(cost.wasted_micros)}, not measured ${money(cost.micros.unmeasured)}; on demand ${money(cost.on_demand_micros)}`}</title>
    </g>
  )
}

export function CostLegend() {
  const kinds = [
    ['money-useful', 'Paid for useful steps'],
    ['money-wasted', 'Paid and wasted'],
    ['phase unmeasured', 'Paid, not measured'],
    ['money-on-demand', 'On demand'],
  ] as const
  return (
    <ul className="key">
      {kinds.map(([name, words]) => (
        <li key={name}>
          <svg width="14" height="12" aria-hidden="true">
            {name === 'money-on-demand' ? <line className={name} x1="0" x2="14" y1="6" y2="6" /> : <rect className={name} width="14" height="12" />}
          </svg>
          {words}
        </li>
      ))}
    </ul>
  )
}
