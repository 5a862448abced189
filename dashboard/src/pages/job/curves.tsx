// Loss and pace over steps.

import { lazy, Suspense, useMemo } from 'react'
import type { Attempt, Point } from '../../api/types'
import { columnsOf, lossesOf, namesOf, PACE, withPace } from '../../charts/series'
import { many } from '../../format'
import { useZoom } from './timeline'

const Curve = lazy(() => import('../../charts/curve'))

/** Two charts are read at a glance; the rest is in the API. */
const FIRST = 1

export function Curves({ points, attempts }: { points: Point[]; attempts: Attempt[] }) {
  const [window] = useZoom()
  const paced = useMemo(() => withPace(points), [points])
  const losses = useMemo(() => lossesOf(attempts), [attempts])
  const names = [...namesOf(points).filter((name) => name !== PACE).slice(0, FIRST), PACE]
  const drawn = useMemo(
    () => names.map((name) => ({ name, columns: columnsOf(paced, attempts, name, window) })),
    // eslint-disable-next-line react-hooks/exhaustive-deps -- names and window by what they say
    [paced, attempts, names.join(), window?.from, window?.to],
  )
  const rolled_back = drawn[0]?.columns.series.some((one) => one.rolled_back)
  return (
    <>
      <ul className="key">
        {attempts.map((one) => (
          <li key={one.attempt}>
            <svg width="22" height="10" aria-hidden="true">
              <line className={`stroke-${((one.attempt - 1) % 6) + 1}`} x1="0" x2="22" y1="5" y2="5" />
            </svg>
            Attempt {one.attempt}
          </li>
        ))}
        {rolled_back && (
          <li>
            <svg width="12" height="12" aria-hidden="true"><circle className="hollow" cx="6" cy="6" r="3.5" /></svg>
            Rolled back
          </li>
        )}
        {losses.length > 0 && (
          <li>
            <svg width="6" height="14" aria-hidden="true"><line className="stroke-loss" x1="3" x2="3" y1="0" y2="14" /></svg>
            {many(losses.length, 'loss', 'losses')} of nodes
          </li>
        )}
      </ul>
      <Suspense fallback={<div className="skeleton middle" role="status"><span className="unseen">Loading</span></div>}>
        <div className="columns">
          {drawn.map(({ name, columns }) =>
            columns.steps.length > 0 ? (
              <Curve key={name} title={name} columns={columns} losses={losses} from_zero={name === PACE} />
            ) : (
              <p key={name} className="empty">No {name} in this part of the time.</p>
            ),
          )}
        </div>
      </Suspense>
    </>
  )
}
