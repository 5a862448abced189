// Points in time, absolute and relative.

import { useEffect, useState } from 'react'
import { distance, moment, momentToMinute, timeOfDay } from '../format'
import { usePreferences } from '../preferences'

/** Largest difference of clocks between browser and service: a time this little in the future counts as now. */
const SKEW_MS = 60_000

/** The current time, updated every `every_ms`. */
export function useNow(every_ms = 1000): number {
  const [now, setNow] = useState(Date.now)
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), every_ms)
    return () => window.clearInterval(timer)
  }, [every_ms])
  return now
}

/** The distance of a point in time from now, in either direction. */
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

/** A mark for prices that are too old to compare with current ones. */
export const Old = ({ of }: { of: { is_old: boolean } }) =>
  of.is_old && <small className="warn" title="Older than 90 days: listed after all newer prices"> ⚠ old</small>

interface AtProps {
  at: string
  /** Time of day only. */
  short?: boolean
  /** Month, day and time to the minute. */
  brief?: boolean
}

export function At({ at, short, brief }: AtProps) {
  const { clock } = usePreferences()
  const when = Date.parse(at)
  return (
    <time dateTime={at} title={moment(when, clock)}>
      {short ? timeOfDay(when, clock) : brief ? momentToMinute(when, clock) : moment(when, clock)}
    </time>
  )
}
