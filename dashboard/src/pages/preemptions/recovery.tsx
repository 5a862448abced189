// What the way back takes, on average, part by part.

import type { Losses } from '../../api/types'
import { useWidth } from '../../charts/width'
import { duration } from '../../format'
import { Absent } from '../../ui/figure'

const PARTS = [
  ['detect_s', 'Detect', 'from the last that was heard until the loss was written down', 'phase stalled'],
  ['wait_s', 'Wait', 'without nodes', 'phase waiting'],
  ['setup_s', 'Setup', 'until the program was up on the next ones', 'phase setup'],
  ['restore_s', 'Restore', 'until it trained', 'phase restore'],
  ['redo_s', 'Redo', 'until it had done again what was lost', 'phase lost'],
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
      <p>{all > 0 ? <>On average it takes <strong>{duration(1000 * all)}</strong> from a loss until all is as before.</> : 'Nobody has told yet how long it takes to come back.'}</p>
      <svg width={width} height={HEIGHT} role="img" aria-label="Parts of a recovery; the list below has their lengths">
        {PARTS.map(([name, title, means, look], at) => (
          <rect key={name} className={look} x={scale(begins[at] ?? 0)} width={scale(seconds[at] ?? 0)} height={HEIGHT}>
            <title>{`${title}: ${duration(1000 * (seconds[at] ?? 0))}, ${means}`}</title>
          </rect>
        ))}
      </svg>
      <ul className="shares">
        {PARTS.map(([name, title, means, look]) => {
          const told = losses.recovery[name]
          return (
            <li key={name}>
              <span><svg width="14" height="12" aria-hidden="true"><rect className={look} width="14" height="12" /></svg> {title}</span>
              <small>{means}</small>
              <span className="number">{told === null ? <Absent why="nobody told" /> : duration(1000 * told)}</span>
            </li>
          )
        })}
      </ul>
    </div>
  )
}
