// The forecast of a job with its plan, beside spot nodes alone and on-demand nodes alone.

import type { PlanAlternative } from '../api/types'
import { duration, measured, money } from '../format'
import { Money } from '../ui/number'
import { Table, type Column } from '../ui/table'
import { At } from '../ui/time'
import { chance, Chance } from './chance'

export const ALTERNATIVES: Record<PlanAlternative['name'], string> = { ours: 'Plan', spot: 'Spot only', on_demand: 'On demand only' }

interface Forecast {
  alternatives: PlanAlternative[]
  deadline_at: string | null
  budget_micros: number | null
}

interface AlternativesProps {
  forecast: Forecast
  /** Whether nothing is billed. */
  simulated: boolean
  /** Whether a plan chooses the nodes. */
  is_planned?: boolean
}

export const AlternativesTable = ({ forecast, simulated, is_planned = true }: AlternativesProps) => (
  <Table name="alternatives" caption={is_planned ? 'Forecast of the plan and its alternatives' : 'Forecast of the job'} rows={forecast.alternatives} keyOf={({ name }) => name}
    columns={columnsOf(forecast, simulated, is_planned ? ALTERNATIVES : { ...ALTERNATIVES, ours: 'These nodes' })} />
)

/** What no plan can keep. */
export const Unkept = ({ sentences }: { sentences: string[] }) => (
  <ul className="flaws" aria-label="What no plan can keep">
    {sentences.map((sentence) => <li key={sentence}>{sentence}</li>)}
  </ul>
)

const columnsOf = ({ deadline_at, budget_micros }: Forecast, simulated: boolean, names: typeof ALTERNATIVES): Column<PlanAlternative>[] => [
  { name: 'choice', title: 'Nodes', value: ({ name }) => names[name], cell: ({ name }) => <strong>{names[name]}</strong> },
  { name: 'cost_usd', title: 'Cost', numeric: true, by: 'P50: half of the simulated runs cost at most this', value: ({ cost_micros }) => cost_micros.p50 / 1e6, cell: ({ cost_micros }) => <Money micros={cost_micros.p50} simulated={simulated} /> },
  { name: 'cost_range', title: 'P10 to P90', value: ({ cost_micros }) => cost_micros.p90 / 1e6, cell: ({ cost_micros }) => `${money(cost_micros.p10)} to ${money(cost_micros.p90)}` },
  { name: 'end_at', title: 'End', by: 'P50: half of the simulated runs end by then', value: ({ end_at }) => end_at.p50, cell: ({ end_at }) => <At at={end_at.p50} brief /> },
  { name: 'end_p90', title: 'P90', by: '90 of 100 simulated runs end by then', value: ({ end_at }) => end_at.p90, cell: ({ end_at }) => <At at={end_at.p90} brief /> },
  ...(deadline_at ? [{ name: 'late', title: 'Late', numeric: true, by: 'probability of missing the deadline', value: ({ late }: PlanAlternative) => late, cell: ({ late }: PlanAlternative) => <Chance of={late} /> }] : []),
  ...(budget_micros === null ? [] : [{ name: 'over_budget', title: 'Over budget', numeric: true, by: 'probability of exceeding the budget', value: ({ over_budget }: PlanAlternative) => over_budget, cell: ({ over_budget }: PlanAlternative) => chance(over_budget) }]),
  { name: 'preemptions', title: 'Preemptions', numeric: true, by: 'mean of the simulated runs', value: ({ preemptions }) => preemptions, cell: ({ preemptions }) => measured(preemptions) },
  { name: 'lost_s', title: 'Lost work', numeric: true, by: 'mean of the simulated runs', value: ({ lost_work_s }) => lost_work_s, cell: ({ lost_work_s }) => duration(1000 * lost_work_s) },
]
