// Values that settle: a request follows the last of several quick changes.

import { useEffect, useState } from 'react'

/** The value once it has not changed for some milliseconds. Values are compared as JSON. */
export function useSettled<T>(value: T, quiet_ms: number): T {
  const text = JSON.stringify(value)
  const [settled, setSettled] = useState(text)
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(text), quiet_ms)
    return () => window.clearTimeout(timer)
  }, [text, quiet_ms])
  return JSON.parse(settled) as T
}
