// What the nodes of a job file cost now, on spot and on demand, and what so many hours of work would.

import { useState } from 'react'
import { useCosts, usePrices } from '../api/queries'
import type { Price } from '../api/types'
import { exactMoney, many, measured, moment, money } from '../format'
import { Absent, Money, Tile } from '../ui/figure'
import { Loaded } from '../ui/panel'
import { Table, type Column } from '../ui/table'
import { Ago, Old } from '../ui/time'
import { Formula } from '../pages/job/money'

/** Places that are shown, the cheapest first. */
const PLACES = 3

interface PriceProps {
  accelerators: string
  infra: string
  nodes: number
}

export function PriceNow({ accelerators, infra, nodes }: PriceProps) {
  const [cloud = '', region = ''] = infra.split('/')
  if (/^(local|slurm)/.test(cloud)) return <p className="note">Nodes of {cloud} are not rented: what they cost is simulated, and shown with ~.</p>
  if (!accelerators) return <p className="note">Name accelerators to see what they cost now.</p>
  return <Known accelerators={accelerators} cloud={cloud} region={region === '*' ? '' : region} nodes={nodes} />
}

interface KnownProps {
  accelerators: string
  cloud: string
  region: string
  nodes: number
}

function Known({ accelerators, cloud, region, nodes }: KnownProps) {
  const query = usePrices({ accelerator: accelerators, cloud, region })
  return (
    <Loaded query={query} height="short" empty={({ prices }) => (prices.length === 0 ? <p>Nobody tells a price of {accelerators} there.</p> : null)}>
      {({ prices }) => {
        const spots = cheapest(prices, 'spot_micros_per_hour').slice(0, PLACES)
        const [full] = cheapest(prices, 'on_demand_micros_per_hour')
        return (
          <>
            <Table name="places" caption={`Cheapest places of ${accelerators} now`} columns={COLUMNS} rows={spots} isLast={(price) => price.is_old} keyOf={(price) => `${price.cloud}/${price.region}/${price.zone}/${price.instance_type}`} />
            <Expected spot={spots[0] ?? null} full={full ?? null} nodes={nodes} />
          </>
        )
      }}
    </Loaded>
  )
}

/** The prices that are known, the lowest first; old ones after all others. */
const cheapest = (prices: Price[], of: 'spot_micros_per_hour' | 'on_demand_micros_per_hour'): Price[] =>
  prices
    .filter((price) => price[of] !== null)
    .sort((a, b) => Number(a.is_old) - Number(b.is_old) || (a[of] ?? 0) - (b[of] ?? 0))

const COLUMNS: Column<Price>[] = [
  { name: 'place', title: 'Where', value: (price) => [price.cloud, price.zone ?? price.region].join(' '), cell: (price) => `${price.cloud ?? 'anywhere'} ${price.zone ?? price.region ?? ''}` },
  { name: 'instance_type', title: 'Node', value: (price) => price.instance_type, cell: (price) => price.instance_type ?? <Absent why="nobody said" /> },
  { name: 'spot_usd', title: 'Spot, an hour', by: 'what a node costs an hour as spot', numeric: true, value: (price) => (price.spot_micros_per_hour ?? 0) / 1e6, cell: (price) => <Hourly micros={price.spot_micros_per_hour} of={price} /> },
  { name: 'on_demand_usd', title: 'On demand, an hour', by: 'what a node costs an hour on demand', numeric: true, value: (price) => (price.on_demand_micros_per_hour ?? 0) / 1e6, cell: (price) => <Hourly micros={price.on_demand_micros_per_hour} of={price} /> },
  { name: 'as_of', title: 'As of', value: (price) => price.as_of, cell: (price) => <><span title={price.source}><Ago at={price.as_of} /></span><Old of={price} /></> },
]

const Hourly = ({ micros, of }: { micros: number | null; of: Price }) =>
  micros === null ? <Absent why="nobody tells it" /> : <Money micros={micros} estimate={of.is_estimate} by={`${of.source}, as of ${moment(Date.parse(of.as_of), 'utc')}`} />

interface ExpectedProps {
  spot: Price | null
  full: Price | null
  nodes: number
}

/** The share of paid time that is useful, of all jobs of the last 30 days, says how much longer nodes are paid than they work. */
function Expected({ spot, full, nodes }: ExpectedProps) {
  const [hours, setHours] = useState('10')
  const history = useCosts('day', '30d').data?.total
  const goodput = history?.goodput || null
  const work = Number(hours)
  const rate = spot?.spot_micros_per_hour ?? null
  const is_number = Number.isFinite(work) && work > 0
  const on_spot = rate !== null && is_number ? Math.round((rate * nodes * work) / (goodput ?? 1)) : null
  const demand = full?.on_demand_micros_per_hour ?? null
  const on_demand = demand !== null && is_number ? Math.round(demand * nodes * work) : null
  const basis = goodput === null ? 'no job has run yet, so nothing is taken to be lost' : `goodput of the last 30 days ${measured(goodput)}`
  return (
    <>
      <label className="row">
        Hours of useful work <input value={hours} inputMode="decimal" size={5} onChange={(event) => setHours(event.target.value)} />
      </label>
      <dl className="tiles">
        <Tile label="Expected on spot" value={on_spot === null ? <Absent why="no spot price, or no hours" /> : <>~{money(on_spot)}</>}
          by={<Formula words="expected = price × nodes × hours ÷ goodput">{[`${exactMoney(rate ?? 0)} × ${nodes} × ${hours} h`, basis]}</Formula>}>
          {many(nodes, 'node')}{spot && <Old of={spot} />}
        </Tile>
        <Tile label="On demand" value={on_demand === null ? <Absent why="no price on demand, or no hours" /> : <>~{money(on_demand)}</>}
          by={<Formula words="on demand = cheapest price on demand × nodes × hours">{[`${exactMoney(demand ?? 0)} × ${nodes} × ${hours} h`]}</Formula>}>
          the same useful work{full && <Old of={full} />}
        </Tile>
      </dl>
    </>
  )
}
