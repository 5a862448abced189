// Why placements were lost: all causes, also those that say nothing of the market.

import { count, share } from '../../format'
import { causeWords } from '../../vocabulary'

/** Those that a market or its machines are the reason of. */
const TAKEN = new Set(['preempted', 'node_failed'])

export function Causes({ causes }: { causes: Record<string, number> }) {
  const rows = Object.entries(causes).sort(([, one], [, other]) => other - one)
  const all = rows.reduce((sum, [, n]) => sum + n, 0)
  if (all === 0) return <p className="empty">No placement was lost.</p>
  return (
    <ul className="shares causes">
      {rows.map(([cause, n]) => (
        <li key={cause}>
          <span>{causeWords(cause)}{!TAKEN.has(cause) && <small> in no rate</small>}</span>
          <meter className={TAKEN.has(cause) ? 'taken' : ''} min={0} max={all} value={n} aria-label={`${causeWords(cause)}: ${n} of ${all}`} />
          <span className="number">{count(n)} <small>{share(n, all)}</small></span>
        </li>
      ))}
    </ul>
  )
}
