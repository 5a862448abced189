// Round numbers for axes. Pure.

/** Round ticks from 0, about `about` of them; the last one may be below the maximum. */
export function roundTicks(most: number, about = 4): number[] {
  if (most <= 0) return [0]
  const rough = most / about
  const unit = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 2.5, 5, 10].map((n) => n * unit).find((one) => one >= rough) ?? 10 * unit
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => Number((at * step).toPrecision(12)))
}

/** Round ticks from 0 of which the last one is at or above the maximum: the end of an axis. */
export function axisTicks(most: number, about = 4): number[] {
  const ticks = roundTicks(most, about)
  const last = ticks.at(-1) ?? 0
  const step = last - (ticks.at(-2) ?? 0)
  return last >= most ? ticks : [...ticks, Number((last + (step || most)).toPrecision(12))]
}
