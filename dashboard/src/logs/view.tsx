// A log of any length: only the visible lines are rendered and loaded.

import { useEffect, useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent, type RefObject } from 'react'
import { bytes, count } from '../format'
import { ErrorMessage } from '../ui/panel'
import { Options, useLogOptions } from './options'
import { guessOf, hasTime, layoutOf, moved, pageAt, pageOf, rowOf, withoutTime, type Layout, type Line, type Loaded } from './pages'
import { usePages, useSize, type LogProps } from './use-log'

/** Line height in the style sheet. */
const LINE_PX = 18
/** Browsers limit elements to about 17 million pixels. Longer logs scroll several lines per line height. */
const MOST_PX = 15_000_000
/** Lines rendered beyond the edges, so that scrolling shows no gaps. */
const BEYOND = 25
/** Distance from the end within which the view follows new lines. */
const NEAR_PX = 40
/** Longest line on display; the download has all of it. */
const LONGEST_SHOWN = 2_000
/** Lines above a search match. */
const ABOVE = 6

export function LogView({ job, log, follows, at }: LogProps) {
  const box = useRef<HTMLDivElement>(null)
  const size_bytes = useSize(job, log, follows)
  const pages = usePages(job, log, size_bytes)
  const { times } = useLogOptions()
  const [view, setView] = useState({ top: 0, height: 480 })
  const guess = useGuess(pages.loaded, size_bytes)
  const layout = useMemo(() => layoutOf(size_bytes, pages.loaded, guess), [size_bytes, pages.loaded, guess])
  const rows = layout.at(-1) ?? 0
  const room = Math.max(view.height, Math.min(MOST_PX, rows * LINE_PX))
  /** Rows per scrolled pixel. */
  const pace = room > view.height ? Math.max(0, rows - view.height / LINE_PX) / (room - view.height) : 0
  const first = Math.min(view.top * pace, rows)
  const begin = Math.max(0, Math.floor(first) - BEYOND)
  const end = Math.min(rows, Math.ceil(first + view.height / LINE_PX) + BEYOND)
  const { stay, go } = useScrollPosition({ box, layout, pace, at, row: at === null ? null : rowOf(layout, pages.loaded, at) })
  useEffect(() => {
    if (size_bytes > 0) pages.want(range(pageAt(layout, begin), pageAt(layout, Math.max(begin, end - 1)) + 1))
  })
  if (size_bytes === 0) return <p className="empty">No output yet.</p>
  const look = () => {
    stay()
    if (box.current) setView({ top: box.current.scrollTop, height: box.current.clientHeight })
  }
  const keys = (event: KeyboardEvent) => {
    if (event.key !== 'End' && event.key !== 'Home') return
    // The smooth scrolling of browsers would stop at lines that load on the way.
    event.preventDefault()
    go(event.key === 'End' ? 'last' : 'first')
  }
  const shown = linesIn(layout, pages.loaded, begin, end)
  const match = at === null ? undefined : shown.findLast((line) => line !== null && line.offset <= at)
  return (
    <>
      {pages.error && <ErrorMessage error={pages.error} retry={pages.again} />}
      <div ref={box} className="log lines" tabIndex={0} role="region" aria-label="Log" onScroll={look} onKeyDown={keys}>
        <div className="room" style={{ height: room }}>
          <pre style={{ top: view.top - (first - begin) * LINE_PX }}>
            {shown.map((line, place) => (
              <span key={begin + place} className={line && line === match ? 'line match' : 'line'}>
                {line ? shortened(times ? line.text : withoutTime(line.text)) : '…'}
                {'\n'}
              </span>
            ))}
          </pre>
        </div>
      </div>
      <div className="row spread note">
        <span>
          {bytes(size_bytes)}, {isWhole(layout, pages.loaded) ? '' : 'about '}
          {count(rows)} {rows === 1 ? 'line' : 'lines'}
        </span>
        <Options job={job} log={log} size_bytes={size_bytes} has_times={shown.some((line) => line !== null && hasTime(line.text))} />
      </div>
    </>
  )
}

/** Mean bytes per line of the first loaded page only, so that the layout does not shift with every page. */
function useGuess(loaded: Loaded, size_bytes: number): number {
  const kept = useRef<number | null>(null)
  if (kept.current === null && loaded.size > 0) kept.current = guessOf(loaded, size_bytes)
  return kept.current ?? guessOf(loaded, size_bytes)
}

interface ScrollPosition {
  box: RefObject<HTMLDivElement | null>
  layout: Layout
  /** Rows per pixel. */
  pace: number
  at: number | null
  /** The row of `at`; null before its page is loaded. */
  row: number | null
}

/** Keeps the scroll position at the end, at the search match, or at the visible lines. */
function useScrollPosition({ box, layout, pace, at, row }: ScrollPosition) {
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
    // Scrolls near the match first, which loads its page.
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
