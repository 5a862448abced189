import { expect, it } from 'vitest'
import { PAGE_BYTES, guessOf, hasTime, layoutOf, linesOf, moved, pageAt, pagesOf, readable, rowOf, spanOf, withoutTime, type Line } from './pages'

const bytes = (text: string) => new TextEncoder().encode(text)
const numbered = (count: number) => Array.from({ length: count }, (_, at) => `line ${at + 1} ü`).join('\n')

/** All lines of a log, page after page, as the viewer reads them. */
function all(log: Uint8Array): Line[] {
  return Array.from({ length: pagesOf(log.length) }, (_, page) => {
    const { offset, limit } = spanOf(page, log.length)
    return linesOf(log.subarray(offset, offset + limit), page)
  }).flat()
}

it('returns every line once and whole for any page boundary', () => {
  const text = numbered(20_000)

  const log = bytes(text)

  const lines = all(log)

  expect(lines.map((line) => line.text)).toEqual(text.split('\n'))
  const at = lines[12_345]?.offset ?? 0
  expect(new TextDecoder().decode(log.subarray(at, at + 10))).toBe('line 12346')
})

it('starts a line at the first byte of a page after a line end', () => {
  const first = 'a'.repeat(PAGE_BYTES - 1)

  expect(all(bytes(`${first}\nb\n`)).map((line) => line.text)).toEqual([first, 'b'])
})

it('shows a line longer than a page once and cut', () => {
  const lines = all(bytes(`${'x'.repeat(3 * PAGE_BYTES)}\nlast`))

  expect(lines).toHaveLength(2)
  expect(lines[1]?.text).toBe('last')
})

it('removes control codes like a terminal', () => {
  expect(readable('\u001b[31mred\u001b[0m')).toBe('red')
  expect(readable(' 10 %\r 20 %\r 30 %\r')).toBe(' 30 %')
})

it('estimates unloaded pages and locates each page', () => {
  const line = { offset: 0, text: '' }
  const loaded = new Map([[1, Array<Line>(10).fill(line)]])
  const layout = layoutOf(3 * PAGE_BYTES, loaded, guessOf(loaded, 3 * PAGE_BYTES))

  expect(layout).toEqual([0, 10, 20, 30])
  expect([0, 9, 10, 29, 99].map((row) => pageAt(layout, row))).toEqual([0, 0, 1, 2, 2])
})

it('keeps its row when pages above are loaded', () => {
  expect(moved([0, 10, 20], [0, 14, 24], 15)).toBe(19)
  expect(moved([0, 10, 20], [0, 10, 30], 15)).toBe(20)
})

it('finds the line of a byte in a loaded page', () => {
  const lines = linesOf(bytes('one\ntwo\nthree'), 0)
  const loaded = new Map([[0, lines]])

  expect(rowOf([0, 3], loaded, 5)).toBe(1)
  expect(rowOf([0, 3], new Map(), 5)).toBeNull()
})

it('removes time stamps at the start of a line only', () => {
  expect(withoutTime('2026-11-11 04:09:28 INFO step 3')).toBe('INFO step 3')
  expect(withoutTime('[2026-11-11T04:09:28.123Z] saved at 04:09:28')).toBe('saved at 04:09:28')
  expect(withoutTime('step 04:09:28')).toBe('step 04:09:28')
  expect([hasTime('04:09:28 done'), hasTime('done')]).toEqual([true, false])
})
