// Line styles of attempts: distinct colours and dashes for a few attempts, a colour ramp for many. Pure.

/** Attempts with a colour of their own. With more, a repeated colour would be ambiguous. */
export const MOST_COLOURS = 6
const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3], [4, 2], [1, 2]]

export interface LineStyle {
  /** A CSS colour. */
  colour: string
  dash: number[]
}

/** The line of an attempt, given the highest attempt number: beyond `MOST_COLOURS`, the ramp runs from the oldest to the newest attempt. */
export function lineStyle(attempt: number, newest: number): LineStyle {
  if (newest <= MOST_COLOURS) return { colour: `var(--plot-${attempt})`, dash: DASHES[attempt - 1] ?? [] }
  const percent = Math.round((100 * (attempt - 1)) / (newest - 1))
  return { colour: `color-mix(in oklch, var(--ramp-new) ${percent}%, var(--ramp-old))`, dash: [] }
}
