import { expect, it } from 'vitest'
import { chance } from './chance'

it('has two significant digits', () => {
  expect([0, 0.0004, 0.0123, 0.083, 0.105, 0.994, 1].map(chance)).toEqual(['0 %', '< 0.1 %', '1.2 %', '8.3 %', '11 %', '99 %', '100 %'])
})
