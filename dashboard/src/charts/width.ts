import { useEffect, useRef, useState, type RefObject } from 'react'

/** The width of an element in CSS pixels; 0 before the first layout. */
export function useWidth<T extends HTMLElement>(): [RefObject<T | null>, number] {
  const box = useRef<T>(null)
  const [width, setWidth] = useState(0)
  useEffect(() => {
    if (!box.current) return
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry?.contentRect.width ?? 0)))
    watch.observe(box.current)
    return () => watch.disconnect()
  }, [])
  return [box, width]
}
