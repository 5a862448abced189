import { expect, it } from 'vitest'
import { FIELDS, parseJobFile, PLAN_WORK, withValue } from './job-file'

const field = (name: string) => FIELDS.find((one) => one.name === name) ?? FIELDS[0]!
const FILE = `# Ours.
name: tiny # short
resources: {infra: aws, accelerators: {A100: 8}}
run: |
  python train.py
`

it('reads values and leaves structures of the file undefined', () => {
  const { values, flaw } = parseJobFile(FILE)

  expect(flaw).toBeNull()
  expect(values).toMatchObject({ name: 'tiny', infra: 'aws', run: 'python train.py\n', num_nodes: '', store: '' })
  expect(values.accelerators).toBeUndefined()
})

it('changes one key and keeps comments and order', () => {
  expect(withValue(FILE, field('name'), 'big')).toBe(FILE.replace('tiny', 'big'))
})

it('adds parent maps with a key and removes them with it', () => {
  const more = withValue(FILE, field('max_cost_usd'), '20')

  expect(more).toBe(`${FILE}holdfast:\n  limits:\n    max_cost_usd: 20\n`)
  expect(withValue(more, field('max_cost_usd'), '')).toBe(FILE)
})

it('starts from an empty file', () => {
  expect(withValue('', field('infra'), 'local')).toBe('resources:\n  infra: local\n')
  expect(withValue('resources:\n', field('infra'), 'local')).toBe('resources:\n  infra: local\n')
})

it('explains why a text is no job file', () => {
  expect(parseJobFile('a: [').flaw).toBeTruthy()
  expect(parseJobFile('- a').flaw).toBe('a job file is a map of names and values')
})

it('knows whether a file divides its nodes into groups', () => {
  expect(parseJobFile('holdfast:\n  groups:\n    - {name: head}\n').has_groups).toBe(true)
  for (const text of [FILE, '', 'holdfast: {groups: }', 'holdfast: {groups: 2}', 'a: [', '- a']) expect(parseJobFile(text).has_groups).toBe(false)
})

it('sees the plan of a file, and adds one', () => {
  expect(parseJobFile('name: x\nholdfast: {plan: {work: 31h}}\n').has_plan).toBe(true)
  expect(parseJobFile('name: x\nholdfast: {plan: 3}\n').has_plan).toBe(false)
  expect(parseJobFile('name: [').has_plan).toBe(false)
  expect(withValue('name: x # mine\n', PLAN_WORK, '31h')).toBe('name: x # mine\nholdfast:\n  plan:\n    work: 31h\n')
})
