// Short names for what the API's own description says of its answers.

import type { components } from './schema'

type Schemas = components['schemas']

export type Job = Schemas['JobOut']
export type JobPage = Schemas['JobPage']
export type Can = Schemas['Can']
export type Attempt = Schemas['AttemptOut']
export type Bill = Schemas['BillOut']
export type Phases = Schemas['PhasesOut']
export type Fact = Schemas['EventOut']
export type Point = Schemas['PointOut']
export type Sentence = Schemas['SentenceOut']
export type Checkpoint = Schemas['CheckpointOut']
export type CheckpointPage = Schemas['CheckpointPage']
export type LogSource = Schemas['LogOut']
export type Cost = Schemas['CostOut']
export type Costs = Schemas['CostsOut']
export type Preemptions = Schemas['PreemptionsOut']
export type Who = Schemas['WhoOut']
export type Session = Schemas['SessionOut']
export type Limits = Schemas['LimitsOut']
export type Problem = Schemas['Problem']
