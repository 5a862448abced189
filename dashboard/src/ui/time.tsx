// Moments, and how long ago they were.

import { useEffect, useState } from 'react'
import { distance, moment, timeOfDay } from '../format'
import { usePreferences } from '../preferences'

/** Clocks of browsers and services differ: what has just happened may seem to come. More is no difference of clocks. */
const SKEW_MS = 60_000

/** The time now, to so many milliseconds. */
export function useNow(every_ms = 1000): number {
  const [now, setNow] = useState(Date.now)
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), every_ms)
    return () => window.clearInterval(timer)
  }, [every_ms])
  return now
}

/** How long ago it was, or how long it takes until then. */
export function Ago({ at }: { at: string }) {
  const { clock } = usePreferences()
  const now = useNow()
  const when = Date.parse(at)
  return (
    <time dateTime={at} title={moment(when, clock)}>
      {distance(when, when - now < SKEW_MS ? Math.max(now, when) : now)}
    </time>
  )
}

/** A mark beside the date of a price that is not comparable with those of today. */
export const Old = ({ of }: { of: { is_old: boolean } }) =>
  of.is_old && <small className="warn" title="Older than 90 days: listed after all newer prices"> ⚠ old</small>

export function At({ at, short }: { at: string; short?: boolean }) {
  const { clock } = usePreferences()
  const when = Date.parse(at)
  return (
    <time dateTime={at} title={moment(when, clock)}>
      {short ? timeOfDay(when, clock) : moment(when, clock)}
    </time>
  )
}
