import { expect, it } from 'vitest'
import { lineStyle } from './attempt-colours'

it('gives each of a few attempts its own colour and dash', () => {
  const styles = [1, 2, 3, 4, 5, 6].map((attempt) => lineStyle(attempt, 6))
  expect(new Set(styles.map(({ colour }) => colour)).size).toBe(6)
  expect(new Set(styles.map(({ dash }) => dash.join())).size).toBe(6)
})

it('repeats no colour among many attempts', () => {
  const styles = Array.from({ length: 19 }, (_, at) => lineStyle(at + 1, 19))
  expect(new Set(styles.map(({ colour }) => colour)).size).toBe(19)
})
