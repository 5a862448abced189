// Moments, and how long ago they were.

import { useEffect, useState } from 'react'
import { distance, moment, timeOfDay } from '../format'
import { usePreferences } from '../preferences'

/** The time now, to so many milliseconds. */
export function useNow(every_ms = 1000): number {
  const [now, setNow] = useState(Date.now)
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), every_ms)
    return () => window.clearInterval(timer)
  }, [every_ms])
  return now
}

export function Ago({ at }: { at: string }) {
  const { clock } = usePreferences()
  const now = useNow()
  const when = Date.parse(at)
  return (
    <time dateTime={at} title={moment(when, clock)}>
      {distance(when, Math.max(now, when))}
    </time>
  )
}

export function At({ at, short }: { at: string; short?: boolean }) {
  const { clock } = usePreferences()
  const when = Date.parse(at)
  return (
    <time dateTime={at} title={moment(when, clock)}>
      {short ? timeOfDay(when, clock) : moment(when, clock)}
    </time>
  )
}
