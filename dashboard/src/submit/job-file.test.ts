import { expect, it } from 'vitest'
import { FIELDS, understand, written } from './job-file'

const field = (name: string) => FIELDS.find((one) => one.name === name) ?? FIELDS[0]!
const FILE = `# Ours.
name: tiny # short
resources: {infra: aws, accelerators: {A100: 8}}
run: |
  python train.py
`

it('reads what stands, and says nothing of what only the file can say', () => {
  const { values, flaw } = understand(FILE)

  expect(flaw).toBeNull()
  expect(values).toMatchObject({ name: 'tiny', infra: 'aws', run: 'python train.py\n', num_nodes: '', store: '' })
  expect(values.accelerators).toBeUndefined()
})

it('changes one word, and leaves comments and order as they are', () => {
  expect(written(FILE, field('name'), 'big')).toBe(FILE.replace('tiny', 'big'))
})

it('makes the maps that a word needs, and takes them away with it', () => {
  const more = written(FILE, field('max_cost_usd'), '20')

  expect(more).toBe(`${FILE}holdfast:\n  limits:\n    max_cost_usd: 20\n`)
  expect(written(more, field('max_cost_usd'), '')).toBe(FILE)
})

it('begins with nothing', () => {
  expect(written('', field('infra'), 'local')).toBe('resources:\n  infra: local\n')
  expect(written('resources:\n', field('infra'), 'local')).toBe('resources:\n  infra: local\n')
})

it('says why a text is no job file', () => {
  expect(understand('a: [').flaw).toBeTruthy()
  expect(understand('- a').flaw).toBe('a job file is a map of names and values')
})
