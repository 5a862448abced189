// A log as pages of bytes, of which only the visible ones are loaded, and its layout in rows. Pure.

/** A lower value adds requests while scrolling; a higher value delays the first lines. */
export const PAGE_BYTES = 64 * 1024
/** Bytes that are read beyond a page for its last line. Longer lines are cut. */
export const TAIL_BYTES = 16 * 1024
/** Assumed length of a line before any is known. */
const GUESS_BYTES = 60

export interface Line {
  /** Offset of its first byte in the log. */
  offset: number
  text: string
}

export type Loaded = ReadonlyMap<number, Line[]>

export const pageOf = (offset: number): number => Math.floor(offset / PAGE_BYTES)
export const pagesOf = (size_bytes: number): number => Math.ceil(size_bytes / PAGE_BYTES)

/** The bytes to read for a page, with one byte before it, which shows whether a line starts with the page. */
export function spanOf(page: number, size_bytes: number): { offset: number; limit: number } {
  const offset = Math.max(0, page * PAGE_BYTES - 1)
  return { offset, limit: Math.min(size_bytes, (page + 1) * PAGE_BYTES + TAIL_BYTES) - offset }
}

const NEWLINE = 10
const words = new TextDecoder()

/** The lines that start in a page, from the bytes of `spanOf`. */
export function linesOf(bytes: Uint8Array, page: number): Line[] {
  const { offset } = spanOf(page, Infinity)
  const end = (page + 1) * PAGE_BYTES - offset
  const lines: Line[] = []
  let at = page === 0 ? 0 : bytes.indexOf(NEWLINE) + 1
  if (page > 0 && at === 0) return lines
  while (at < end && at < bytes.length) {
    const newline = bytes.indexOf(NEWLINE, at)
    const stop = newline === -1 ? bytes.length : newline
    lines.push({ offset: offset + at, text: readable(words.decode(bytes.subarray(at, stop))) })
    at = stop + 1
  }
  return lines
}

// eslint-disable-next-line no-control-regex -- colour codes of terminals
const CODES = /\u001b\[[0-9;?]*[A-Za-z]/g

/** A line as a terminal shows it: without colour codes, and with the last state of a progress bar. */
export function readable(text: string): string {
  const plain = text.replaceAll(CODES, '').replace(/\r+$/, '')
  return plain.slice(plain.lastIndexOf('\r') + 1)
}

const TIME = /^\[?(\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d([.,]\d+)?( ?(Z|UTC|[+-]\d\d:?\d\d))?\]?:? ?/

/** Whether a line starts with a time stamp. */
export const hasTime = (text: string): boolean => TIME.test(text)

/** A line without its leading time stamp. */
export const withoutTime = (text: string): string => text.replace(TIME, '')

/** Mean bytes per line, from the first loaded page. */
export function guessOf(loaded: Loaded, size_bytes: number): number {
  const [first] = loaded
  if (!first || first[1].length === 0) return GUESS_BYTES
  return Math.max(1, Math.min(PAGE_BYTES, size_bytes - first[0] * PAGE_BYTES) / first[1].length)
}

/** Rows before each page; the last one: of all. */
export type Layout = number[]

/** Where pages stand among rows: as many as their lines where they are loaded, else as many as are likely. */
export function layoutOf(size_bytes: number, loaded: Loaded, guess_bytes: number): Layout {
  const rows = [0]
  for (let page = 0; page < pagesOf(size_bytes); page++) {
    const bytes = Math.min(PAGE_BYTES, size_bytes - page * PAGE_BYTES)
    const count = loaded.get(page)?.length ?? Math.max(1, Math.round(bytes / guess_bytes))
    rows.push((rows[page] ?? 0) + count)
  }
  return rows
}

/** The page in which a row is, of those that have rows. */
export function pageAt(layout: Layout, row: number): number {
  let low = 0
  let high = Math.max(0, layout.length - 2)
  while (low < high) {
    const middle = Math.ceil((low + high) / 2)
    if ((layout[middle] ?? 0) <= row) low = middle
    else high = middle - 1
  }
  return low
}

/** The row of a new layout that shows the line of a row of an old one, after pages above it were loaded. */
export function moved(from: Layout, to: Layout, row: number): number {
  const page = pageAt(from, row)
  const [begin, end] = [from[page] ?? 0, from[page + 1] ?? 0]
  const [new_begin, new_end] = [to[page] ?? 0, to[page + 1] ?? 0]
  const within = row - begin
  const is_as_it_was = end - begin === new_end - new_begin
  return new_begin + (is_as_it_was || end === begin ? within : (within * (new_end - new_begin)) / (end - begin))
}

/** The row of the line that has a byte in it; null while its page is not loaded. */
export function rowOf(layout: Layout, loaded: Loaded, offset: number): number | null {
  const page = pageOf(offset)
  const lines = loaded.get(page)
  if (!lines) return null
  const at = lines.findLastIndex((line) => line.offset <= offset)
  return Math.max(0, (layout[page] ?? 0) + at)
}
