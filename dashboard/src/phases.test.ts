import { expect, it } from 'vitest'
import { isTraining, LIVE_STATES, markOf, STATES, stateWords } from './phases'

it('adds the termination notice and its phase to the state', () => {
  expect(stateWords({ state: 'training', notice: null })).toBe('training')
  expect(stateWords({ state: 'training', notice: { phase: 'noticed' } })).toBe('training, termination notice')
  expect(stateWords({ state: 'training', notice: { phase: 'saving' } })).toBe('training, termination notice: saving')
  expect(stateWords({ state: 'training', notice: { phase: 'leaving' } })).toBe('training, termination notice: leaving')
})

it('treats a job on fewer nodes as one in training that needs attention', () => {
  expect(LIVE_STATES.filter(isTraining)).toEqual(['training', 'degraded'])
  expect(STATES.degraded?.tone).toBe('warn')
})

it('marks a start of training as a resume only in later attempts', () => {
  expect(markOf('TrainingStarted', { attempt: 1 })).toBeNull()
  expect(markOf('TrainingStarted', { attempt: 2 })).toBe('resume')
  expect(markOf('NodesReady', { attempt: 2 })).toBeNull()
})
