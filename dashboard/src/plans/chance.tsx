// Probabilities, with a mark above the one at which the service notifies.

/** The probability of being late above which the service sends a notification. */
const HIGH = 0.1

/** A probability in percent with two significant digits. */
export function chance(of: number): string {
  const percent = 100 * of
  if (percent > 0 && percent < 0.1) return '< 0.1 %'
  return `${percent < 10 ? Number(percent.toPrecision(2)) : Math.round(percent)} %`
}

export const Chance = ({ of }: { of: number }) => <span className={of > HIGH ? 'warn' : ''}>{of > HIGH && '⚠ '}{chance(of)}</span>
