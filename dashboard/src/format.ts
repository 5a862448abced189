// How figures are written: always with their unit, and never without one that is known to be missing.

const MICROS = 1_000_000
const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS

const dollars = (digits: number) =>
  new Intl.NumberFormat('en-US', {
    style: 'currency',
    currency: 'USD',
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  })
const CENTS = dollars(2)
const FINE = dollars(4)
const EXACT = dollars(6)
const COUNT = new Intl.NumberFormat('en-US')
const SHORT = new Intl.NumberFormat('en-US', { maximumSignificantDigits: 4 })

/** Micro-dollars as people read them: to the cent, and below a dollar to the hundredth of one. */
export function money(micros: number): string {
  const is_small = micros !== 0 && Math.abs(micros) < MICROS
  return (is_small ? FINE : CENTS).format(micros / MICROS)
}

/** Micro-dollars to the last one. */
export const exactMoney = (micros: number): string => EXACT.format(micros / MICROS)

export const count = (n: number): string => COUNT.format(n)

/** A measured number, to four digits. */
export const measured = (x: number): string => SHORT.format(x)

export function share(part: number, whole: number): string | null {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : null
}

/** "2 jobs", "1 job". */
export const many = (n: number, one: string, more = `${one}s`): string =>
  `${count(n)} ${n === 1 ? one : more}`

export function duration(ms: number): string {
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`
  if (ms < 2 * MINUTE_MS) return `${Math.round(ms / 1000)} s`
  if (ms < 2 * HOUR_MS) return `${Math.round(ms / MINUTE_MS)} min`
  if (ms < 2 * DAY_MS) {
    const minutes = Math.round(ms / MINUTE_MS)
    return pair(Math.floor(minutes / 60), 'h', minutes % 60, 'min')
  }
  const hours = Math.round(ms / HOUR_MS)
  return pair(Math.floor(hours / 24), 'd', hours % 24, 'h')
}

const pair = (big: number, unit: string, small: number, part: string): string =>
  small ? `${big} ${unit} ${small} ${part}` : `${big} ${unit}`

export function bytes(n: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let at = 0
  let left = n
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024
    at += 1
  }
  return `${at === 0 ? left : left.toFixed(1)} ${units[at]}`
}

/** "3 min ago", "in 2 h"; "now" for what is younger than a second. */
export function distance(at: number, now: number): string {
  const ms = now - at
  if (Math.abs(ms) < 1000) return 'now'
  const words = duration(Math.floor(Math.abs(ms) / 1000) * 1000).replace('.0 s', ' s')
  return ms > 0 ? `${words} ago` : `in ${words}`
}

export type Clockwork = 'utc' | 'local'

const forms = new Map<string, Intl.DateTimeFormat>()

function form(clock: Clockwork, parts: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = clock + JSON.stringify(parts)
  const known = forms.get(key)
  if (known) return known
  const zone = clock === 'utc' ? { timeZone: 'UTC' } : {}
  const made = new Intl.DateTimeFormat('en-CA', { ...parts, ...zone, hourCycle: 'h23' })
  forms.set(key, made)
  return made
}

/** The time of day of a moment, to the second. */
export const timeOfDay = (at: number, clock: Clockwork): string =>
  form(clock, { hour: '2-digit', minute: '2-digit', second: '2-digit' }).format(at)

/** The day of a moment: 2026-03-01. */
export const dayOf = (at: number, clock: Clockwork): string =>
  form(clock, { year: 'numeric', month: '2-digit', day: '2-digit' }).format(at)

/** A moment in full, with its zone. */
export function moment(at: number, clock: Clockwork): string {
  const zone =
    clock === 'utc'
      ? 'UTC'
      : (form(clock, { timeZoneName: 'short' })
          .formatToParts(at)
          .find((part) => part.type === 'timeZoneName')?.value ?? '')
  return `${dayOf(at, clock)} ${timeOfDay(at, clock)} ${zone}`.trim()
}
