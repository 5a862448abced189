// The choices of a plan above the lanes of a chart over time.

import { CAPACITIES, type Capacity } from '../phases'
import type { PageFrame } from './frame'
import type { Band } from './plan-bands'

/** Height of a bar of an attempt or of a choice. */
export const BAR = 16
/** Smallest width of a bar, so that short phases stay visible. */
export const LEAST = 1.5

export function Bands({ bands, frame, y }: { bands: Band[]; frame: PageFrame; y: number }) {
  return bands.map(({ capacity, from, to, words }) => {
    const [x, end] = [Math.max(frame.left, frame.x(from)), Math.min(frame.left + frame.inner, frame.x(to))]
    return end >= x && (
      <rect key={`${from} ${capacity}`} className={`phase ${capacity} band`} x={x} y={y} width={Math.max(LEAST, end - x)} height={BAR}>
        <title>{words}</title>
      </rect>
    )
  })
}

/** Legend of the choices that occur, as items of a list. */
export function BandItems({ bands }: { bands: Band[] }) {
  return (Object.keys(CAPACITIES) as Capacity[]).filter((name) => bands.some(({ capacity }) => capacity === name)).map((name) => (
    <li key={name} title={CAPACITIES[name].means}>
      <svg width="14" height="12" aria-hidden="true"><rect className={`phase ${name}`} width="14" height="12" /></svg>
      {CAPACITIES[name].word}
    </li>
  ))
}
