// Preemptions by day in UTC: with a checkpoint within the notice filled, the others hatched.

import type { PreemptionHistory } from '../api/types'
import { count, many } from '../format'
import { DayAxis, HEIGHT, slotsOf } from './daily-costs-chart'
import { daysFrom } from './daily-costs'
import { axisTicks } from './scale'
import { useWidth } from './width'

interface PreemptionDaysProps {
  history: PreemptionHistory
  /** The last day of the axis, such as 2026-03-01. */
  today: string
}

export function PreemptionDays({ history, today }: PreemptionDaysProps) {
  const [box, width] = useWidth<HTMLDivElement>()
  const known = new Map(history.days.map((day) => [day.day, day]))
  const days = daysFrom([history.since ?? history.days[0]?.day ?? today, history.until ?? today])
  const ticks = axisTicks(Math.max(1, ...history.days.map((day) => day.taken)), 3).filter(Number.isInteger)
  const slots = slotsOf(width, days.length, ticks.at(-1) ?? 1)
  const total = history.days.reduce((sum, day) => sum + day.taken, 0)
  return (
    <div ref={box}>
      <svg width={width} height={HEIGHT} role="img" aria-label={`${many(total, 'preemption')} in ${many(days.length, 'day')}; the table below lists them`}>
        <DayAxis days={days} ticks={ticks} format={count} width={width} slots={slots} />
        {days.map((day, place) => {
          const found = known.get(day)
          if (!found) return null
          const x = slots.x(place)
          return (
            <g key={day}>
              <rect className="bar-rest" x={x} y={slots.y(found.taken)} width={slots.bar} height={slots.y(found.notice_used) - slots.y(found.taken)} />
              <rect className="bar-part" x={x} y={slots.y(found.notice_used)} width={slots.bar} height={slots.y(0) - slots.y(found.notice_used)} />
              <title>{`${day}: ${many(found.taken, 'preemption')}, ${found.noticed} with notice, ${found.notice_used} checkpointed within the notice`}</title>
            </g>
          )
        })}
      </svg>
    </div>
  )
}
