// Round figures for axes. Pure.

/** Round steps from 0 that reach a maximum, about so many of them; the last may lie below it. */
export function roundTicks(most: number, about = 4): number[] {
  if (most <= 0) return [0]
  const rough = most / about
  const unit = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 2.5, 5, 10].map((n) => n * unit).find((one) => one >= rough) ?? 10 * unit
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => Number((at * step).toPrecision(12)))
}
