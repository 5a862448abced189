// What each day cost, stacked by what it was for.

import { many, money } from '../format'
import { DayAxis, HEIGHT, slotsOf } from './days'
import { MOST_PARTS, type Stacks } from './stacks'
import { useWidth } from './width'

const wordOf = (part: string): string => part || 'without one'

export function StackedDays({ stacks, what }: { stacks: Stacks; what: string }) {
  const [box, width] = useWidth<HTMLDivElement>()
  const whole = (micros: number[]) => micros.reduce((sum, one) => sum + one, 0)
  const most = Math.max(1, ...stacks.days.map(({ micros }) => whole(micros)))
  const slots = slotsOf(width, stacks.days.length, most)
  const words = [...stacks.parts.map(wordOf), `${stacks.others} others`]
  return (
    <>
      <ul className="key">
        {stacks.parts.map((part, at) => (
          <li key={part}>
            <svg width="14" height="12" aria-hidden="true"><rect className={`weave-${at + 1}`} width="14" height="12" /></svg>
            {wordOf(part)}
          </li>
        ))}
        {stacks.others > 0 && (
          <li>
            <svg width="14" height="12" aria-hidden="true"><rect className="weave-others" width="14" height="12" /></svg>
            {many(stacks.others, 'other')}
          </li>
        )}
      </ul>
      <div ref={box} className="days">
        <svg width={width} height={HEIGHT} role="img" aria-label={`${what} of ${many(stacks.days.length, 'day')}, at most ${money(most)} a day; the table has the figures`}>
          <DayAxis days={stacks.days.map(({ day }) => day)} most={most} width={width} slots={slots} />
          {stacks.days.map(({ day, micros }, place) => {
            let below = 0
            return (
              <g key={day}>
                {micros.map((amount, at) => {
                  const from = below
                  below += amount
                  const top = slots.y(below)
                  return amount > 0 ? (
                    <rect key={at} className={at < MOST_PARTS ? `weave-${at + 1}` : 'weave-others'} x={slots.x(place)} y={top} width={slots.bar} height={slots.y(from) - top}>
                      <title>{`${day}, ${words[at]}: ${money(amount)} of ${money(whole(micros))}`}</title>
                    </rect>
                  ) : null
                })}
              </g>
            )
          })}
        </svg>
      </div>
    </>
  )
}
