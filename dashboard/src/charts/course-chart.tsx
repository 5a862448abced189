// What a job had cost by each moment, as a line; what the same work would have cost on demand as a dashed one; the gap shaded.

import { useState, type PointerEvent } from 'react'
import type { Bill } from '../api/types'
import { exactMoney, moment, money } from '../format'
import { usePreferences } from '../preferences'
import { courseOf, sumAt, within, type Sum } from './course'
import { frameOf, useBrush } from './frame'
import type { Window } from './lanes'
import { AXIS, TimeAxis } from './swimlane'
import { useWidth } from './width'

const HEIGHT = 190
const TOP = 10

interface CourseProps {
  bill: Bill
  /** Which part of the time is shown, in words; empty for all of it. */
  part: string
  window: Window
  zoom: (window: Window | null) => void
}

export function Course({ bill, part, window, zoom }: CourseProps) {
  const { clock } = usePreferences()
  const [box, width] = useWidth<HTMLElement>()
  const [hovered, setHovered] = useState<number | null>(null)
  const frame = frameOf(width, window)
  const { handlers, pulled } = useBrush(frame, zoom)
  const all = courseOf(bill)
  const shown = within(all, window)
  const most = Math.max(1, ...shown.map((sum) => Math.max(sum.paid_micros, sum.on_demand_micros)))
  const y = (micros: number) => TOP + (HEIGHT - AXIS - TOP) * (1 - micros / most)
  const paid = shown.map((sum) => `${frame.x(sum.at)},${y(sum.paid_micros)}`)
  const full = shown.map((sum) => `${frame.x(sum.at)},${y(sum.on_demand_micros)}`)
  const look = (event: PointerEvent<SVGSVGElement>) =>
    setHovered(frame.moment(event.clientX - event.currentTarget.getBoundingClientRect().left))
  const end = all.at(-1)
  const last = part ? (sumAt(all, window.to) ?? end) : end
  const told = (hovered === null ? null : sumAt(all, hovered)) ?? last ?? null
  return (
    <figure className="course" ref={box}>
      <figcaption>
        <Key changed={bill.attempts.some((attempt) => (attempt.price_changes ?? []).length > 0)} />
        <output>{told && words(told, hovered === null ? null : moment(told.at, clock))}</output>
      </figcaption>
      <svg
        width={width} height={HEIGHT} role="img" {...handlers} onPointerLeave={() => setHovered(null)}
        aria-label={`Money over time${part}: at the end ${last ? words(last, null) : 'nothing'}`}
        onPointerMove={(event) => {
          handlers.onPointerMove(event)
          look(event)
        }}
      >
        <TimeAxis frame={frame} height={HEIGHT} />
        {[0, 0.5, 1].map((part) => (
          <g key={part}>
            <line className="grid" x1={frame.left} x2={frame.left + frame.inner} y1={y(part * most)} y2={y(part * most)} />
            <text className="tick" x={frame.left - 6} y={y(part * most) + 4} textAnchor="end">{money(part * most)}</text>
          </g>
        ))}
        <polygon className="gap" points={[...full, ...paid.toReversed()].join(' ')} />
        <polyline className="money-on-demand-line" points={full.join(' ')} />
        <polyline className="money-paid-line" points={paid.join(' ')} />
        {changesIn(bill, window).map(({ at, micros_per_hour }) => (
          <path key={at} className="change" d={`M${frame.x(at)},${y(sumAt(all, at)?.paid_micros ?? 0) - 5} l4,5 l-4,5 l-4,-5 z`}>
            <title>{`Price changed to ${money(micros_per_hour)} an hour`}</title>
          </path>
        ))}
        {hovered !== null && told && <line className="cross" x1={frame.x(told.at)} x2={frame.x(told.at)} y1={TOP} y2={HEIGHT - AXIS} />}
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
    .flatMap((attempt) => attempt.price_changes ?? [])
    .map(({ at, micros_per_hour }) => ({ at: Date.parse(at), micros_per_hour }))
    .filter(({ at }) => at >= from && at <= to)

function Key({ changed }: { changed: boolean }) {
  return (
    <ul className="key">
      <li><svg width="18" height="10" aria-hidden="true"><line className="money-paid-line" x1="0" x2="18" y1="5" y2="5" /></svg>Paid</li>
      <li><svg width="18" height="10" aria-hidden="true"><line className="money-on-demand-line" x1="0" x2="18" y1="5" y2="5" /></svg>On demand, for the same useful work</li>
      <li><svg width="14" height="12" aria-hidden="true"><rect className="gap" width="14" height="12" /></svg>Between them</li>
      {changed && <li><svg width="10" height="12" aria-hidden="true"><path className="change" d="M5,1 l4,5 l-4,5 l-4,-5 z" /></svg>Price changed</li>}
    </ul>
  )
}
