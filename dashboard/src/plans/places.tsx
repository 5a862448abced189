// The places of a plan: prices, availability, and on how much that rests.

import type { PlanPlace } from '../api/types'
import { count, duration } from '../format'
import { Absent, Money } from '../ui/number'
import { Table, type Column } from '../ui/table'
import { Ago } from '../ui/time'
import { chance } from './chance'

interface PlacesProps {
  name: string
  places: PlanPlace[]
  /** Whether nothing is billed. */
  simulated: boolean
}

export const PlacesTable = ({ name, places, simulated }: PlacesProps) => (
  <Table name={name} caption="Places now" columns={columnsOf(simulated)} rows={places} keyOf={(place) => place.name} />
)

const columnsOf = (simulated: boolean): Column<PlanPlace>[] => [
  { name: 'place', title: 'Place', value: (place) => place.name, cell: (place) => <strong>{place.name}</strong> },
  { name: 'spot_usd', title: 'Spot/h', numeric: true, by: 'spot price of all nodes of the job for one hour', value: (place) => usd(place.spot_micros_per_hour), cell: (place) => <Hourly micros={place.spot_micros_per_hour} of={place} simulated={simulated} /> },
  { name: 'on_demand_usd', title: 'On demand/h', numeric: true, by: 'on-demand price of all nodes of the job for one hour', value: (place) => usd(place.on_demand_micros_per_hour), cell: (place) => <Hourly micros={place.on_demand_micros_per_hour} of={place} simulated={simulated} /> },
  { name: 'spot', title: 'Spot nodes', by: 'whether spot nodes were there when they were last seen', value: spotWords, cell: spotWords },
  { name: 'seen_at', title: 'Seen', value: (place) => place.seen_at, cell: (place) => (place.seen_at ? <Ago at={place.seen_at} /> : <Absent why="never seen" />) },
  { name: 'observations', title: 'Observations', numeric: true, by: 'denials, placements and losses, or intervals of a recording, that are known of the place', value: (place) => place.observations, cell: (place) => count(place.observations) },
  { name: 'hint', title: 'Hint', numeric: true, by: 'probability of a placement according to the provider', value: (place) => place.hint, cell: (place) => (place.hint === null ? <Absent why="no hint" /> : <span title={hintWords(place)}>{chance(place.hint)}</span>) },
]

const usd = (micros: number | null): number | null => (micros === null ? null : micros / 1e6)

const Hourly = ({ micros, of, simulated }: { micros: number | null; of: PlanPlace; simulated: boolean }) =>
  micros === null ? <Absent why="none sold, or none wanted" /> : <Money micros={micros} simulated={simulated} estimate={of.is_price_estimate} />

function hintWords({ hint_source, hint_uptime_s, hint_preemption_rate }: PlanPlace): string {
  const uptime = hint_uptime_s === null ? '' : `; most nodes run for ${duration(hint_uptime_s * 1000)}`
  const taken = hint_preemption_rate === null ? '' : `; ${chance(hint_preemption_rate)} of the nodes that stopped lately were preempted`
  return `${hint_source}${uptime}${taken}`
}

function spotWords({ is_available }: PlanPlace): string {
  if (is_available === null) return 'never seen'
  return is_available ? '● available' : '✕ none'
}
