// The frame that charts over time have in common, so that they stand below each other; and its brush.

import { useState, type PointerEvent } from 'react'
import type { Window } from './lanes'

const LABEL = 118
const NARROW_LABEL = 58
const NARROW = 560
/** Right of what is drawn. */
const RIM = 4
/** Shorter pulls are clicks. */
export const LEAST_PULL = 6

export interface Frame {
  width: number
  /** Where what is drawn begins; labels stand before it. */
  left: number
  inner: number
  is_narrow: boolean
  window: Window
  x: (at: number) => number
  moment: (x: number) => number
}

export function frameOf(width: number, window: Window): Frame {
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

/** What a chart needs so that a pull across it zooms, and a double click goes back. */
export function useBrush(frame: Frame, zoom: (window: Window | null) => void) {
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
