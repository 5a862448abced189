import { expect, it } from 'vitest'
import { guessOf, layoutOf, linesOf, moved, PAGE_BYTES, pageAt, pagesOf, readable, rowOf, spanOf, type Line } from './pages'

const bytes = (text: string) => new TextEncoder().encode(text)
const numbered = (count: number) => Array.from({ length: count }, (_, at) => `line ${at + 1} ü`).join('\n')

/** All lines of a log, page after page, as the viewer reads them. */
function all(log: Uint8Array): Line[] {
  return Array.from({ length: pagesOf(log.length) }, (_, page) => {
    const { offset, limit } = spanOf(page, log.length)
    return linesOf(log.subarray(offset, offset + limit), page)
  }).flat()
}

it('gives every line once, whole, wherever pages are cut', () => {
  const text = numbered(20_000)

  const log = bytes(text)

  const lines = all(log)

  expect(lines.map((line) => line.text)).toEqual(text.split('\n'))
  const at = lines[12_345]?.offset ?? 0
  expect(new TextDecoder().decode(log.subarray(at, at + 10))).toBe('line 12346')
})

it('begins a line at the first byte of a page where the one before ended just there', () => {
  const first = 'a'.repeat(PAGE_BYTES - 1)

  expect(all(bytes(`${first}\nb\n`)).map((line) => line.text)).toEqual([first, 'b'])
})

it('shows a line that is longer than pages once, and cut', () => {
  const lines = all(bytes(`${'x'.repeat(3 * PAGE_BYTES)}\nlast`))

  expect(lines).toHaveLength(2)
  expect(lines[1]?.text).toBe('last')
})

it('leaves what a terminal would', () => {
  expect(readable('\u001b[31mred\u001b[0m')).toBe('red')
  expect(readable(' 10 %\r 20 %\r 30 %\r')).toBe(' 30 %')
})

it('reckons with what is not loaded, and knows where each page stands', () => {
  const line = { offset: 0, text: '' }
  const loaded = new Map([[1, Array<Line>(10).fill(line)]])
  const layout = layoutOf(3 * PAGE_BYTES, loaded, guessOf(loaded, 3 * PAGE_BYTES))

  expect(layout).toEqual([0, 10, 20, 30])
  expect([0, 9, 10, 29, 99].map((row) => pageAt(layout, row))).toEqual([0, 0, 1, 2, 2])
})

it('stays where it was when pages above come to be known', () => {
  expect(moved([0, 10, 20], [0, 14, 24], 15)).toBe(19)
  expect(moved([0, 10, 20], [0, 10, 30], 15)).toBe(20)
})

it('finds the line of a byte once its page is there', () => {
  const lines = linesOf(bytes('one\ntwo\nthree'), 0)
  const loaded = new Map([[0, lines]])

  expect(rowOf([0, 3], loaded, 5)).toBe(1)
  expect(rowOf([0, 3], new Map(), 5)).toBeNull()
})
