import { expect, it } from 'vitest'
import { marked } from './changes'

const news = (before: string, after: string) => marked(before, after).filter((line) => line.is_new).map((line) => line.text)

it('marks what came, and what was changed', () => {
  expect(news('a\nb\nc', 'a\nx\nb\nC')).toEqual(['x', 'C'])
  expect(news('a\na\nb', 'a\nb')).toEqual([])
  expect(news('', 'a')).toEqual(['a'])
})

it('gives every line of the text once', () => {
  expect(marked('a\nb', 'b\na\nb').map((line) => line.text)).toEqual(['b', 'a', 'b'])
})
