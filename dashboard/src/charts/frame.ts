// The frame and brush of charts over time, which align below each other.

import { useState, type PointerEvent } from 'react'
import type { Window } from './attempt-lanes'

const LABEL = 118
const NARROW_LABEL = 58
const NARROW = 560
/** Margin at the right. */
const RIM = 4
/** Shorter drags count as clicks. */
export const LEAST_PULL = 6

export interface PageFrame {
  width: number
  /** Left edge of the plot, after the labels. */
  left: number
  inner: number
  is_narrow: boolean
  window: Window
  x: (at: number) => number
  moment: (x: number) => number
}

export function frameOf(width: number, window: Window): PageFrame {
  const is_narrow = width < NARROW
  const left = is_narrow ? NARROW_LABEL : LABEL
  const inner = Math.max(1, width - left - RIM)
  const span = window.to - window.from
  return {
    width, left, inner, is_narrow, window,
    x: (at) => left + (inner * (at - window.from)) / span,
    moment: (x) => window.from + ((x - left) / inner) * span,
  }
}

/** Pointer handlers: a drag zooms, a double click resets. */
export function useBrush(frame: PageFrame, zoom: (window: Window | null) => void) {
  const [pull, setPull] = useState<[number, number] | null>(null)
  const x_of = (event: PointerEvent<SVGSVGElement>) =>
    Math.min(frame.left + frame.inner, Math.max(frame.left, event.clientX - event.currentTarget.getBoundingClientRect().left))
  const handlers = {
    onPointerDown: (event: PointerEvent<SVGSVGElement>) => {
      event.currentTarget.setPointerCapture(event.pointerId)
      setPull([x_of(event), x_of(event)])
    },
    onPointerMove: (event: PointerEvent<SVGSVGElement>) => pull && setPull([pull[0], x_of(event)]),
    onPointerUp: () => {
      if (pull && Math.abs(pull[1] - pull[0]) > LEAST_PULL)
        zoom({ from: frame.moment(Math.min(...pull)), to: frame.moment(Math.max(...pull)) })
      setPull(null)
    },
    onDoubleClick: () => zoom(null),
  }
  return { handlers, pulled: pull && { x: Math.min(...pull), width: Math.abs(pull[1] - pull[0]) } }
}
