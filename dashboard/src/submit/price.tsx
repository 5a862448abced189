// Current prices of a job file's nodes or node groups, and the expected cost of a number of hours.

import { useState } from 'react'
import { useCosts, usePrices } from '../api/queries'
import type { LaunchEstimate, NodesEstimate, Price } from '../api/types'
import { exactMoney, many, measured, moment, money } from '../format'
import { Absent, Money, Tile } from '../ui/number'
import { Loaded } from '../ui/panel'
import { Table, type Column } from '../ui/table'
import { Ago, Old } from '../ui/time'
import { Formula } from '../pages/job/cost'

/** Placements on display, cheapest first. */
const PLACES = 3

interface PriceProps {
  accelerators: string
  infra: string
  nodes: number
}

export function PriceNow({ accelerators, infra, nodes }: PriceProps) {
  const [cloud = '', region = ''] = infra.split('/')
  if (/^(local|slurm)/.test(cloud)) return <p className="note">Nodes of {cloud} are not rented. Their prices are simulated and marked with ~.</p>
  if (!accelerators) return <p className="note">Enter accelerators to see current prices.</p>
  return <PriceTable accelerators={accelerators} cloud={cloud} region={region === '*' ? '' : region} nodes={nodes} />
}

interface PriceTableProps {
  accelerators: string
  cloud: string
  region: string
  nodes: number
}

function PriceTable({ accelerators, cloud, region, nodes }: PriceTableProps) {
  const query = usePrices({ accelerator: accelerators, cloud, region })
  return (
    <Loaded query={query} height="short" empty={({ prices }) => (prices.length === 0 ? <p>No price of {accelerators} there.</p> : null)}>
      {({ prices }) => {
        const spots = cheapest(prices, 'spot_micros_per_hour').slice(0, PLACES)
        const [full] = cheapest(prices, 'on_demand_micros_per_hour')
        return (
          <>
            <Table name="places" caption={`Cheapest placements of ${accelerators}`} columns={COLUMNS} rows={spots} isLast={(price) => price.is_old} keyOf={(price) => `${price.cloud}/${price.region}/${price.zone}/${price.instance_type}`} />
            <Expected spot={spots[0] ?? null} full={full ?? null} nodes={nodes} />
          </>
        )
      }}
    </Loaded>
  )
}

/** Known prices, lowest first; old ones last. */
const cheapest = (prices: Price[], of: 'spot_micros_per_hour' | 'on_demand_micros_per_hour'): Price[] =>
  prices
    .filter((price) => price[of] !== null)
    .sort((a, b) => Number(a.is_old) - Number(b.is_old) || (a[of] ?? 0) - (b[of] ?? 0))

const COLUMNS: Column<Price>[] = [
  { name: 'place', title: 'Where', value: (price) => [price.cloud, price.zone ?? price.region].join(' '), cell: (price) => `${price.cloud ?? 'anywhere'} ${price.zone ?? price.region ?? ''}` },
  { name: 'instance_type', title: 'Node', value: (price) => price.instance_type, cell: (price) => price.instance_type ?? <Absent why="unknown" /> },
  { name: 'spot_usd', title: 'Spot/h', by: 'spot price of one node for one hour', numeric: true, value: (price) => (price.spot_micros_per_hour ?? 0) / 1e6, cell: (price) => <Hourly micros={price.spot_micros_per_hour} of={price} /> },
  { name: 'on_demand_usd', title: 'On demand/h', by: 'on-demand price of one node for one hour', numeric: true, value: (price) => (price.on_demand_micros_per_hour ?? 0) / 1e6, cell: (price) => <Hourly micros={price.on_demand_micros_per_hour} of={price} /> },
  { name: 'as_of', title: 'As of', value: (price) => price.as_of, cell: (price) => <><span title={price.source}><Ago at={price.as_of} /></span><Old of={price} /></> },
]

const Hourly = ({ micros, of }: { micros: number | null; of: Price }) =>
  micros === null ? <Absent why="unknown" /> : <Money micros={micros} estimate={of.is_estimate} by={`${of.source}, as of ${moment(Date.parse(of.as_of), 'utc')}`} />

interface ExpectedProps {
  spot: Price | null
  full: Price | null
  nodes: number
}

/** The expected cost, given the goodput of all jobs of the last 30 days. */
function Expected({ spot, full, nodes }: ExpectedProps) {
  const { field, hours, work, goodput, basis } = useWork()
  const rate = spot?.spot_micros_per_hour ?? null
  const on_spot = rate !== null && work !== null ? Math.round((rate * nodes * work) / goodput) : null
  const demand = full?.on_demand_micros_per_hour ?? null
  const on_demand = demand !== null && work !== null ? Math.round(demand * nodes * work) : null
  return (
    <>
      {field}
      <dl className="tiles">
        <Tile label="Expected on spot" value={on_spot === null ? <Absent why="no spot price, or no hours" /> : <>~{money(on_spot)}</>}
          by={<Formula text="expected = price × nodes × hours ÷ goodput">{[`${exactMoney(rate ?? 0)} × ${nodes} × ${hours} h`, basis]}</Formula>}>
          {many(nodes, 'node')}{spot && <Old of={spot} />}
        </Tile>
        <Tile label="On demand" value={on_demand === null ? <Absent why="no on-demand price, or no hours" /> : <>~{money(on_demand)}</>}
          by={<Formula text="on demand = cheapest on-demand price × nodes × hours">{[`${exactMoney(demand ?? 0)} × ${nodes} × ${hours} h`]}</Formula>}>
          the same useful work{full && <Old of={full} />}
        </Tile>
      </dl>
    </>
  )
}

/** A field for hours of useful work, and the goodput that divides them. */
function useWork() {
  const [hours, setHours] = useState('10')
  const known = useCosts('day', '30d').data?.total.goodput || null
  const work = Number(hours)
  return {
    hours,
    work: Number.isFinite(work) && work > 0 ? work : null,
    goodput: known ?? 1,
    basis: known === null ? 'no job has run yet: goodput 1 assumed' : `goodput of the last 30 days ${measured(known)}`,
    field: (
      <label className="row">
        Hours of useful work <input value={hours} inputMode="decimal" size={5} onChange={(event) => setHours(event.target.value)} />
      </label>
    ),
  }
}

/** The price of each node group and of all of them, as `holdfast submit` estimates it. */
export function GroupPrices({ estimate }: { estimate: LaunchEstimate }) {
  const { field, hours, work, goodput, basis } = useWork()
  const groups = estimate.groups ?? []
  const hourly = estimate.micros_per_hour
  const expected = hourly !== null && work !== null ? Math.round((hourly * work) / goodput) : null
  if (estimate.simulated) return <p className="note">These nodes are not rented: nothing is billed.</p>
  return (
    <>
      <Table name="groups" caption="Price of each node group" columns={GROUPS} rows={groups} keyOf={(group) => group.name} />
      {field}
      <dl className="tiles">
        <Tile label="Price per hour" value={hourly === null ? <Absent why="the price of a group is unknown" /> : <>~{money(hourly)}</>}
          by={<Formula text="price per hour = sum of all groups">{groups.map(({ name, micros_per_hour }) => `${name} ${micros_per_hour === null ? 'unknown' : exactMoney(micros_per_hour)}`)}</Formula>}>
          {many(estimate.nodes, 'node')} in {many(groups.length, 'group')}<Old of={estimate} />
        </Tile>
        <Tile label="Expected" value={expected === null ? <Absent why="the price of a group is unknown, or no hours" /> : <>~{money(expected)}</>}
          by={<Formula text="expected = price per hour × hours ÷ goodput">{[`${exactMoney(hourly ?? 0)} × ${hours} h`, basis]}</Formula>}>
          {estimate.max_cost_usd === null ? 'no maximum cost' : `maximum ${money(1e6 * Number(estimate.max_cost_usd))}`}
        </Tile>
      </dl>
    </>
  )
}

const GROUPS: Column<NodesEstimate>[] = [
  { name: 'group', title: 'Group', value: (group) => group.name, cell: (group) => <strong>{group.name}</strong> },
  { name: 'nodes', title: 'Nodes', numeric: true, value: (group) => group.nodes, cell: (group) => group.nodes },
  {
    name: 'usd_per_hour', title: 'Price/h', numeric: true, by: 'price of all nodes of the group for one hour', value: (group) => (group.micros_per_hour === null ? null : group.micros_per_hour / 1e6),
    cell: (group) => (group.micros_per_hour === null ? <Absent why="price unknown" /> : <><Money micros={group.micros_per_hour} /><Old of={group} /></>),
  },
  { name: 'market', title: 'Market', value: marketOf, cell: marketOf },
  { name: 'node', title: 'Node', value: (group) => group.node, cell: (group) => group.node ?? <Absent why="the file names no node" /> },
  { name: 'place', title: 'Where', by: 'the place in the file, or the cheapest known one', value: (group) => group.place, cell: (group) => <>{group.place ?? 'any cloud'}{!group.is_pinned && <small> cheapest</small>}</> },
]

function marketOf({ is_spot }: NodesEstimate): string {
  return is_spot ? 'spot' : 'on demand'
}
