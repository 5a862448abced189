// Mean recovery time by part.

import type { Losses } from '../../api/types'
import { useWidth } from '../../charts/width'
import { duration, elapsed } from '../../format'
import { Absent } from '../../ui/number'

const PARTS = [
  ['detect_s', 'Detect', 'last heartbeat until the loss was detected', 'phase stalled'],
  ['wait_s', 'Wait', 'without nodes', 'phase waiting'],
  ['setup_s', 'Setup', 'until the program started on new nodes', 'phase setup'],
  ['restore_s', 'Restore', 'until training resumed', 'phase restore'],
  ['redo_s', 'Recompute', 'until the lost steps were recomputed', 'phase lost'],
] as const

const HEIGHT = 22

export function Recovery({ losses }: { losses: Losses }) {
  const [box, width] = useWidth<HTMLDivElement>()
  const seconds = PARTS.map(([name]) => losses.recovery[name] ?? 0)
  const all = seconds.reduce((sum, one) => sum + one, 0)
  const begins = seconds.map((_, at) => seconds.slice(0, at).reduce((sum, one) => sum + one, 0))
  const scale = (value: number) => (width * value) / Math.max(1, all)
  return (
    <div ref={box} className="recovery">
      <p>{all > 0 ? <>Mean time from a loss to full recovery: <strong>{duration(1000 * all)}</strong></> : 'No recoveries yet'}</p>
      <svg width={width} height={HEIGHT} role="img" aria-label="Parts of a recovery; the list below has their lengths">
        {PARTS.map(([name, title, means, look], at) => (
          <rect key={name} className={look} x={scale(begins[at] ?? 0)} width={scale(seconds[at] ?? 0)} height={HEIGHT}>
            <title>{`${title}: ${duration(1000 * (seconds[at] ?? 0))}, ${means}`}</title>
          </rect>
        ))}
      </svg>
      <ul className="shares">
        {PARTS.map(([name, title, means, look]) => {
          const seconds_or_null = losses.recovery[name]
          return (
            <li key={name}>
              <span><svg width="14" height="12" aria-hidden="true"><rect className={look} width="14" height="12" /></svg> {title}</span>
              <small>{means}</small>
              <span className="number">{seconds_or_null === null ? <Absent why="no data" /> : elapsed(1000 * seconds_or_null)}</span>
            </li>
          )
        })}
      </ul>
    </div>
  )
}
