// Capacity losses by cause, including those that are not preemptions.

import { count, share } from '../../format'
import { causeWords } from '../../phases'

/** Causes that count as preemptions. */
const PREEMPTED = new Set(['preempted', 'node_failed'])

export function Causes({ causes }: { causes: Record<string, number> }) {
  const rows = Object.entries(causes).sort(([, one], [, other]) => other - one)
  const total = rows.reduce((sum, [, n]) => sum + n, 0)
  if (total === 0) return <p className="empty">No capacity losses.</p>
  return (
    <ul className="shares causes">
      {rows.map(([cause, n]) => (
        <li key={cause}>
          <span>{causeWords(cause)}{!PREEMPTED.has(cause) && <small> (not counted)</small>}</span>
          <meter className={PREEMPTED.has(cause) ? 'preempted' : ''} min={0} max={total} value={n} aria-label={`${causeWords(cause)}: ${n} of ${total}`} />
          <span className="number">{count(n)} <small>{share(n, total)}</small></span>
        </li>
      ))}
    </ul>
  )
}
