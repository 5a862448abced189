// A log of any length: only the lines that are looked at are in the page, and only their part of it is asked for.

import { useEffect, useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent, type RefObject } from 'react'
import type { LogSource } from '../api/types'
import { bytes, count } from '../format'
import { Trouble } from '../ui/panel'
import { guessOf, layoutOf, moved, pageAt, pageOf, rowOf, type Layout, type Line, type Loaded } from './pages'
import { usePages, useSize } from './use-log'

/** As the style sheet has it. */
const LINE_PX = 18
/** Browsers end what they draw at some 17 million; what is longer is scrolled by more than a line a line. */
const MOST_PX = 15_000_000
/** Lines beyond the edges, so that none are missing while one scrolls. */
const BEYOND = 25
/** How near to its end a reader is who wants to see what comes. */
const NEAR_PX = 40
/** Of a line; the rest is on the command line. */
const LONGEST_SHOWN = 2_000
/** Lines above the one that was searched for. */
const ABOVE = 6

interface LogViewProps {
  job: string
  log: LogSource
  /** Whether what comes is shown as it comes. */
  follows: boolean
  /** A byte whose line is to be shown; null: the end. */
  at: number | null
}

export function LogView({ job, log, follows, at }: LogViewProps) {
  const box = useRef<HTMLDivElement>(null)
  const size_bytes = useSize(job, log, follows)
  const pages = usePages(job, log, size_bytes)
  const [view, setView] = useState({ top: 0, height: 480 })
  const guess = useGuess(pages.loaded, size_bytes)
  const layout = useMemo(() => layoutOf(size_bytes, pages.loaded, guess), [size_bytes, pages.loaded, guess])
  const rows = layout.at(-1) ?? 0
  const room = Math.max(view.height, Math.min(MOST_PX, rows * LINE_PX))
  /** Rows for each pixel that is scrolled. */
  const pace = room > view.height ? Math.max(0, rows - view.height / LINE_PX) / (room - view.height) : 0
  const first = Math.min(view.top * pace, rows)
  const begin = Math.max(0, Math.floor(first) - BEYOND)
  const end = Math.min(rows, Math.ceil(first + view.height / LINE_PX) + BEYOND)
  const { stay, go } = usePlace({ box, layout, pace, at, row: at === null ? null : rowOf(layout, pages.loaded, at) })
  useEffect(() => {
    if (size_bytes > 0) pages.want(range(pageAt(layout, begin), pageAt(layout, Math.max(begin, end - 1)) + 1))
  })
  if (size_bytes === 0) return <p className="empty">Nothing was printed yet.</p>
  const look = () => {
    stay()
    if (box.current) setView({ top: box.current.scrollTop, height: box.current.clientHeight })
  }
  const keys = (event: KeyboardEvent) => {
    if (event.key !== 'End' && event.key !== 'Home') return
    // The browser would glide there, and be held up by lines that come to be known on the way.
    event.preventDefault()
    go(event.key === 'End' ? 'last' : 'first')
  }
  const shown = linesIn(layout, pages.loaded, begin, end)
  const sought = at === null ? undefined : shown.findLast((line) => line !== null && line.offset <= at)
  return (
    <>
      {pages.error && <Trouble error={pages.error} retry={pages.again} />}
      <div ref={box} className="log lines" tabIndex={0} role="region" aria-label="Log" onScroll={look} onKeyDown={keys}>
        <div className="room" style={{ height: room }}>
          <pre style={{ top: view.top - (first - begin) * LINE_PX }}>
            {shown.map((line, place) => (
              <span key={begin + place} className={line && line === sought ? 'line sought' : 'line'}>
                {line ? shortened(line.text) : '…'}
                {'\n'}
              </span>
            ))}
          </pre>
        </div>
      </div>
      <p className="note">
        {bytes(size_bytes)}, {isWhole(layout, pages.loaded) ? '' : 'about '}
        {count(rows)} {rows === 1 ? 'line' : 'lines'}
      </p>
    </>
  )
}

/** Bytes of a line as they were guessed with the first page, and no other: else all would move with every page. */
function useGuess(loaded: Loaded, size_bytes: number): number {
  const kept = useRef<number | null>(null)
  if (kept.current === null && loaded.size > 0) kept.current = guessOf(loaded, size_bytes)
  return kept.current ?? guessOf(loaded, size_bytes)
}

interface Place {
  box: RefObject<HTMLDivElement | null>
  layout: Layout
  /** Rows for each pixel. */
  pace: number
  at: number | null
  /** That of `at`; null while its page is not there. */
  row: number | null
}

/** Keeps readers where they are: at the end, at what they searched for, or at what they looked at. */
function usePlace({ box, layout, pace, at, row }: Place) {
  const place = useRef({ layout, row: 0, sticks: at === null })
  const gone_to = useRef<number | null>(null)
  useLayoutEffect(() => {
    const { current: it } = place
    if (!box.current || it.layout === layout) return
    it.row = moved(it.layout, layout, it.row)
    it.layout = layout
    box.current.scrollTop = it.sticks ? box.current.scrollHeight : it.row / (pace || Infinity)
  }, [box, layout, pace])
  useLayoutEffect(() => {
    if (!box.current || at === null || gone_to.current === at) return
    // Near to it at first, so that its page is asked for.
    const to = Math.max(0, (row ?? layout[pageOf(at)] ?? 0) - ABOVE)
    place.current = { layout, row: to, sticks: false }
    box.current.scrollTop = to / (pace || Infinity)
    if (row !== null) gone_to.current = at
  }, [box, layout, pace, at, row])
  const stay = () => {
    const { current: it } = box
    if (!it) return
    place.current.row = it.scrollTop * pace
    place.current.sticks = it.scrollHeight - it.scrollTop - it.clientHeight < NEAR_PX
  }
  const go = (end: 'first' | 'last') => {
    const sticks = end === 'last'
    place.current = { ...place.current, row: 0, sticks }
    box.current?.scrollTo({ top: sticks ? box.current.scrollHeight : 0 })
  }
  return { stay, go }
}

function linesIn(layout: Layout, loaded: Loaded, begin: number, end: number): (Line | null)[] {
  const found: (Line | null)[] = []
  let page = pageAt(layout, begin)
  for (let row = begin; row < end; row++) {
    while (row >= (layout[page + 1] ?? Infinity)) page += 1
    found.push(loaded.get(page)?.[row - (layout[page] ?? 0)] ?? null)
  }
  return found
}

const isWhole = (layout: Layout, loaded: Loaded): boolean => loaded.size >= layout.length - 1

const shortened = (text: string): string =>
  text.length > LONGEST_SHOWN ? `${text.slice(0, LONGEST_SHOWN)} … ${count(text.length - LONGEST_SHOWN)} more` : text

const range = (from: number, to: number): number[] => Array.from({ length: Math.max(0, to - from) }, (_, at) => from + at)
