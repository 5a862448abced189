import { expect, test } from 'vitest'
import { tagChanges } from './tag-changes'

test('changes of tags set and remove them', () => {
  expect(tagChanges('team=nlp, stage-,x=')).toEqual({ team: 'nlp', stage: null, x: '' })
})

test.each(['', 'team', '=x', '-', 'a=b,c'])('%j is no change of tags', (text) => {
  expect(tagChanges(text)).toBeNull()
})
