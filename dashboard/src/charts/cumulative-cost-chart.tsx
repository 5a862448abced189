// The cumulative cost of a job as a line, and the on-demand price of the same work as a dashed line. The gap is shaded.

import { useState, type PointerEvent } from 'react'
import type { Bill } from '../api/types'
import { exactMoney, moment, money, moneyTick } from '../format'
import { usePreferences } from '../preferences'
import { cumulativeCostOf, sumAt, within, type Sum } from './cumulative-cost'
import { moneyTicks } from './daily-costs-chart'
import { frameOf, useBrush } from './frame'
import type { Window } from './attempt-lanes'
import { AXIS, TimeAxis } from './swimlane'
import { useWidth } from './width'

const HEIGHT = 190
const TOP = 10

interface CumulativeCostProps {
  bill: Bill
  /** The zoomed time window for the accessible name; empty for the whole job. */
  part: string
  window: Window
  zoom: (window: Window | null) => void
}

export function CumulativeCostChart({ bill, part, window, zoom }: CumulativeCostProps) {
  const { clock } = usePreferences()
  const [box, width] = useWidth<HTMLElement>()
  const [hovered, setHovered] = useState<number | null>(null)
  const frame = frameOf(width, window)
  const { handlers, pulled } = useBrush(frame, zoom)
  const all = cumulativeCostOf(bill)
  const shown = within(all, window)
  const most = Math.max(1, ...shown.map((sum) => Math.max(sum.paid_micros, sum.on_demand_micros)))
  const ticks = moneyTicks(most)
  const top = ticks.at(-1) ?? most
  const format = moneyTick(ticks)
  const y = (micros: number) => TOP + (HEIGHT - AXIS - TOP) * (1 - micros / top)
  const paid = shown.map((sum) => `${frame.x(sum.at)},${y(sum.paid_micros)}`)
  const full = shown.map((sum) => `${frame.x(sum.at)},${y(sum.on_demand_micros)}`)
  const look = (event: PointerEvent<SVGSVGElement>) =>
    setHovered(frame.moment(event.clientX - event.currentTarget.getBoundingClientRect().left))
  const end = all.at(-1)
  const last = part ? (sumAt(all, window.to) ?? end) : end
  const shownSum = (hovered === null ? null : sumAt(all, hovered)) ?? last ?? null
  return (
    <figure className="cumulative-cost" ref={box}>
      <figcaption>
        <Key changed={bill.attempts.some((attempt) => (attempt.price_changes ?? []).length > 0)} />
        <output>{shownSum && words(shownSum, hovered === null ? null : moment(shownSum.at, clock))}</output>
      </figcaption>
      <svg
        width={width} height={HEIGHT} role="img" {...handlers} onPointerLeave={() => setHovered(null)}
        aria-label={`Cost over time${part}: at the end ${last ? words(last, null) : 'nothing'}`}
        onPointerMove={(event) => {
          handlers.onPointerMove(event)
          look(event)
        }}
      >
        <TimeAxis frame={frame} height={HEIGHT} />
        {ticks.map((tick) => (
          <g key={tick}>
            <line className="grid" x1={frame.left} x2={frame.left + frame.inner} y1={y(tick)} y2={y(tick)} />
            <text className="tick" x={frame.left - 6} y={y(tick) + 4} textAnchor="end">{format(tick)}</text>
          </g>
        ))}
        <polygon className="gap" points={[...full, ...paid.toReversed()].join(' ')} />
        <polyline className="money-on-demand-line" points={full.join(' ')} />
        <polyline className="money-paid-line" points={paid.join(' ')} />
        {changesIn(bill, window).map(({ at, group, micros_per_hour }) => (
          <path key={`${at} ${group}`} className="change" d={`M${frame.x(at)},${y(sumAt(all, at)?.paid_micros ?? 0) - 5} l4,5 l-4,5 l-4,-5 z`}>
            <title>{`Price${group && ` of group ${group}`} changed to ${money(micros_per_hour)}/h`}</title>
          </path>
        ))}
        {hovered !== null && shownSum && <line className="cross" x1={frame.x(shownSum.at)} x2={frame.x(shownSum.at)} y1={TOP} y2={HEIGHT - AXIS} />}
        {pulled && <rect className="brush" {...pulled} y={0} height={HEIGHT - AXIS} />}
      </svg>
    </figure>
  )
}

function words(sum: Sum, when: string | null): string {
  const gap = sum.on_demand_micros - sum.paid_micros
  const text = `paid ${exactMoney(Math.round(sum.paid_micros))}, on demand ${exactMoney(Math.round(sum.on_demand_micros))}, ${gap < 0 ? 'overpaid' : 'saved'} ${exactMoney(Math.abs(Math.round(gap)))}`
  return when ? `${when}: ${text}` : text
}

const changesIn = (bill: Bill, { from, to }: Window) =>
  bill.attempts
    .flatMap(({ price_changes, groups }) =>
      (price_changes ?? []).map(({ at, group, micros_per_hour }) => ({ at: Date.parse(at), group: groups?.[group]?.name ?? '', micros_per_hour })),
    )
    .filter(({ at }) => at >= from && at <= to)

function Key({ changed }: { changed: boolean }) {
  return (
    <ul className="key">
      <li><svg width="18" height="10" aria-hidden="true"><line className="money-paid-line" x1="0" x2="18" y1="5" y2="5" /></svg>Paid</li>
      <li><svg width="18" height="10" aria-hidden="true"><line className="money-on-demand-line" x1="0" x2="18" y1="5" y2="5" /></svg>On demand, for the same useful work</li>
      <li><svg width="14" height="12" aria-hidden="true"><rect className="gap" width="14" height="12" /></svg>Difference</li>
      {changed && <li><svg width="10" height="12" aria-hidden="true"><path className="change" d="M5,1 l4,5 l-4,5 l-4,-5 z" /></svg>Price changed</li>}
    </ul>
  )
}
