// What each day cost: useful and wasted stacked, and what the same work would have cost on demand as a line above.

import type { Cost } from '../api/types'
import { many, money } from '../format'
import { useWidth } from './width'

const HEIGHT = 170
const FOOT = 22
const LEFT = 64

/** Every day from the first to the last, with a gap where nothing was paid. */
export function daysOf(costs: Cost[]): { day: string; cost: Cost | null }[] {
  const known = new Map(costs.map((cost) => [cost.key, cost]))
  const first = costs[0]
  const last = costs.at(-1)
  if (!first || !last) return []
  const days = []
  for (let at = Date.parse(first.key); at <= Date.parse(last.key); at += 86_400_000) {
    const day = new Date(at).toISOString().slice(0, 10)
    days.push({ day, cost: known.get(day) ?? null })
  }
  return days
}

export function Days({ costs }: { costs: Cost[] }) {
  const [box, width] = useWidth<HTMLDivElement>()
  const days = daysOf(costs)
  const most = Math.max(1, ...costs.map((cost) => Math.max(cost.paid_micros, cost.on_demand_micros)))
  const room = Math.max(1, width - LEFT)
  const slot = Math.min(56, room / Math.max(1, days.length))
  const bar = Math.max(2, slot * 0.7)
  const y = (micros: number) => (HEIGHT - FOOT - 8) * (1 - micros / most) + 8
  const every = Math.ceil(days.length / Math.max(1, Math.floor(room / 56)))
  return (
    <div ref={box} className="days">
      <svg width={width} height={HEIGHT} role="img" aria-label={`Cost of ${many(days.length, 'day')}, at most ${money(most)} a day; the table has the figures`}>
        {[0, 0.5, 1].map((part) => (
          <g key={part}>
            <line className="grid" x1={LEFT} x2={width} y1={y(part * most)} y2={y(part * most)} />
            <text className="tick" x={LEFT - 6} y={y(part * most) + 4} textAnchor="end">
              {money(part * most)}
            </text>
          </g>
        ))}
        {days.map(({ day, cost }, at) => {
          const x = LEFT + at * slot + (slot - bar) / 2
          return (
            <g key={day}>
              {cost && <Day cost={cost} x={x} bar={bar} y={y} />}
              {at % every === 0 && (
                <text className="tick" x={x + bar / 2} y={HEIGHT - 5} textAnchor="middle">
                  {day.slice(5)}
                </text>
              )}
            </g>
          )
        })}
      </svg>
    </div>
  )
}

function Day({ cost, x, bar, y }: { cost: Cost; x: number; bar: number; y: (micros: number) => number }) {
  const useful = cost.paid_micros - cost.wasted_micros
  return (
    <g>
      <rect className="money-useful" x={x} y={y(useful)} width={bar} height={Math.max(0, y(0) - y(useful))} />
      <rect className="money-wasted" x={x} y={y(cost.paid_micros)} width={bar} height={Math.max(0, y(useful) - y(cost.paid_micros))} />
      <line className="money-on-demand" x1={x - 2} x2={x + bar + 2} y1={y(cost.on_demand_micros)} y2={y(cost.on_demand_micros)} />
      <title>{`${cost.key}: paid ${money(cost.paid_micros)}, of it wasted ${money(cost.wasted_micros)}; on demand ${money(cost.on_demand_micros)}`}</title>
    </g>
  )
}

export function MoneyKey() {
  const kinds = [
    ['money-useful', 'Paid for useful steps'],
    ['money-wasted', 'Paid and wasted'],
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
