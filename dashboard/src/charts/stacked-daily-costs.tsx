// The cost of each day, stacked by part.

import { many, money, moneyTick } from '../format'
import { DayAxis, HEIGHT, moneyTicks, slotsOf } from './daily-costs-chart'
import { MOST_PARTS, type DailyCosts } from './daily-costs'
import { useWidth } from './width'

const wordOf = (part: string): string => part || 'none'

export function StackedDailyCosts({ stacks, what }: { stacks: DailyCosts; what: string }) {
  const [box, width] = useWidth<HTMLDivElement>()
  const whole = (micros: number[]) => micros.reduce((sum, one) => sum + one, 0)
  const most = Math.max(1, ...stacks.days.map(({ micros }) => whole(micros)))
  const ticks = moneyTicks(most)
  const slots = slotsOf(width, stacks.days.length, ticks.at(-1) ?? most)
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
          <DayAxis days={stacks.days.map(({ day }) => day)} ticks={ticks} format={moneyTick(ticks)} width={width} slots={slots} />
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
