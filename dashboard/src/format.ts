// Number formats. Every number has its unit.

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

/** Micro-dollars to the cent; below a dollar to a hundredth of a cent. */
export function money(micros: number): string {
  const is_small = micros !== 0 && Math.abs(micros) < MICROS
  return (is_small ? FINE : CENTS).format(micros / MICROS)
}

/** The format of money ticks: all with the digits that their step needs. */
export function moneyTick(ticks: number[]): (micros: number) => string {
  const step = Math.abs((ticks[1] ?? 0) - (ticks[0] ?? 0)) / MICROS
  const digits = step >= 1 || step === 0 ? 0 : step >= 0.01 ? 2 : 4
  return (micros) => dollars(digits).format(micros / MICROS)
}

/** Micro-dollars in full precision. */
export const exactMoney = (micros: number): string => EXACT.format(micros / MICROS)

export const count = (n: number): string => COUNT.format(n)

/** A number with four significant digits. */
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

/** A duration as h:mm:ss: one unit for all values of a column. */
export function elapsed(ms: number): string {
  const seconds = Math.round(ms / 1000)
  const two = (n: number) => String(n).padStart(2, '0')
  return `${Math.floor(seconds / 3600)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`
}

/** Seconds with two decimals: one unit for short durations of a column. */
export const inSeconds = (ms: number): string => `${(ms / 1000).toFixed(2)} s`

/** Bytes in MiB: one unit for all sizes of a column. */
export const inMebibytes = (n: number): string => `${new Intl.NumberFormat('en-US', { minimumFractionDigits: 1, maximumFractionDigits: 1 }).format(n / 1024 ** 2)} MiB`

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

/** "3 min ago", "in 2 h"; "now" below one second. */
export function distance(at: number, now: number): string {
  const ms = now - at
  if (Math.abs(ms) < 1000) return 'now'
  const words = duration(Math.floor(Math.abs(ms) / 1000) * 1000).replace('.0 s', ' s')
  return ms > 0 ? `${words} ago` : `in ${words}`
}

export type Clock = 'utc' | 'local'

const forms = new Map<string, Intl.DateTimeFormat>()

function form(clock: Clock, parts: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = clock + JSON.stringify(parts)
  const known = forms.get(key)
  if (known) return known
  const zone = clock === 'utc' ? { timeZone: 'UTC' } : {}
  const made = new Intl.DateTimeFormat('en-CA', { ...parts, ...zone, hourCycle: 'h23' })
  forms.set(key, made)
  return made
}

/** The time of day, to the second. */
export const timeOfDay = (at: number, clock: Clock): string =>
  form(clock, { hour: '2-digit', minute: '2-digit', second: '2-digit' }).format(at)

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec']

/** The day of an ISO date: "Mar 1". */
export const dayLabel = (day: string): string => `${MONTHS[Number(day.slice(5, 7)) - 1]} ${Number(day.slice(8, 10))}`

/** The day of a point in time, without the year: "Mar 1". */
export const shortDay = (at: number, clock: Clock): string => dayLabel(dayOf(at, clock))

/** The day of a point in time: 2026-03-01. */
export const dayOf = (at: number, clock: Clock): string =>
  form(clock, { year: 'numeric', month: '2-digit', day: '2-digit' }).format(at)

/** A point in time to the minute without the year, with its zone: "Mar 1 14:05 UTC". */
export const momentToMinute = (at: number, clock: Clock): string => `${shortDay(at, clock)} ${timeOfDay(at, clock).slice(0, 5)} ${zoneOf(at, clock)}`.trim()

/** The name of the time zone in force: "UTC", "CET". */
export const zoneOf = (at: number, clock: Clock): string =>
  clock === 'utc'
    ? 'UTC'
    : (form(clock, { timeZoneName: 'short' })
        .formatToParts(at)
        .find((part) => part.type === 'timeZoneName')?.value ?? '')

/** A point in time in full, with its zone. */
export const moment = (at: number, clock: Clock): string => `${dayOf(at, clock)} ${timeOfDay(at, clock)} ${zoneOf(at, clock)}`.trim()
