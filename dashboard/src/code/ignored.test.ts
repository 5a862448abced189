import { expect, it } from 'vitest'
import cases from './ignored.cases.json'
import { leavesOut } from './ignored'

it.each(cases)('leaves out what the command line leaves out: $rules', ({ rules, sent, left_out }) => {
  const leaves = leavesOut(rules)

  expect(sent.filter((path) => leaves(path) !== null)).toEqual([])
  expect(left_out.filter((path) => leaves(path) === null)).toEqual([])
})

it('names the topmost excluded folder', () => {
  expect(leavesOut('runs/\n')('a/runs/b/c.log')).toBe('a/runs/')
})
