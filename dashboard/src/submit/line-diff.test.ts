import { expect, it } from 'vitest'
import { diffLines } from './line-diff'

const news = (before: string, after: string) => diffLines(before, after).filter((line) => line.is_new).map((line) => line.text)

it('marks added and changed lines', () => {
  expect(news('a\nb\nc', 'a\nx\nb\nC')).toEqual(['x', 'C'])
  expect(news('a\na\nb', 'a\nb')).toEqual([])
  expect(news('', 'a')).toEqual(['a'])
})

it('returns every line once', () => {
  expect(diffLines('a\nb', 'b\na\nb').map((line) => line.text)).toEqual(['b', 'a', 'b'])
})
