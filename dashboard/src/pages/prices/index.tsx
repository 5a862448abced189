// What nodes cost: spot against on demand, place by place, over time, and who says so.

import { useSearchParams } from 'react-router'
import { usePriceHistory, usePrices } from '../../api/market'
import type { Price, Prices, PriceSeries } from '../../api/types'
import { placeOf, PriceChart, PriceKey } from '../../charts/prices'
import { count, exactMoney, many, moment, share } from '../../format'
import { Absent, Money } from '../../ui/figure'
import { Loaded, Panel, Section } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { At, Old } from '../../ui/time'

const WINDOWS = { '7d': '7 days', '30d': '30 days', '90d': '90 days' }
/** What most people look for, if it is sold at all. */
const FIRST = 'A100:8'

export default function PricesPage() {
  const [words, setWords] = useSearchParams()
  const put = (name: string, value: string) => setWords((now) => (now.set(name, value), now), { replace: true })
  const all = usePrices()
  const kinds = kindsOf(all.data)
  const kind = words.get('node') ?? (kinds.includes(FIRST) ? FIRST : (kinds[0] ?? ''))
  const region = words.get('region') ?? ''
  const since = words.get('since') ?? '30d'
  const past = usePriceHistory(kind, region, since)
  return (
    <>
      <title>Prices · Holdfast</title>
      <div className="row spread">
        <h1>Prices</h1>
        <div className="row filters">
          <Choice label="Node" value={kind} put={(value) => put('node', value)} options={kinds.map((one) => [one, one])} />
          <Choice label="Region" value={region} put={(value) => put('region', value)} options={[['', 'All'], ...regionsOf(all.data, kind).map((one): [string, string] => [one, one])]} />
          <Choice label="Since" value={since} put={(value) => put('since', value)} options={Object.entries(WINDOWS)} />
        </div>
      </div>
      {all.data && kinds.length === 0 ? <NothingKnown /> : (
        <>
          <Panel title="Spot over time" query={past} height="tall" aside={<small>for one node and hour</small>}
            empty={({ series }) => (series.length === 0 ? <p>Nobody tells a spot price of {kind}{region && ` in ${region}`}. Choose another node or region.</p> : null)}>
            {(told) => (
              <>
                {told.series.some((one) => one.changes.length > 0) ? <><PriceKey told={told} /><PriceChart told={told} /></>
                  : <p className="empty">Nobody tells how these prices have changed: only AWS has a history, for a service that has keys of AWS. What is known now stands below.</p>}
                {told.left_out > 0 && <p className="note">{many(told.left_out, 'place')} more; choose a region to see them.</p>}
                <Table name="past" caption="Spot prices over this time" columns={PAST} rows={told.series} isLast={({ now }) => now.is_old} keyOf={(one) => `${placeOf(one)} ${one.now.instance_type}`} />
              </>
            )}
          </Panel>
          <Section title="What is known now" aside={all.data && all.data.refused_count > 0 ? <small>{count(all.data.refused_count)} rows of price lists are not believed</small> : null}>
            <Loaded query={all} height="tall">
              {({ prices }) => <Table name="now" caption="Prices of nodes now" searchable columns={NOW} rows={prices} isLast={(one) => one.is_old} keyOf={(one) => [one.cloud, one.region, one.zone, one.instance_type, one.accelerator, one.count].join(' ')} />}
            </Loaded>
          </Section>
        </>
      )}
    </>
  )
}

interface ChoiceProps {
  label: string
  value: string
  options: [string, string][]
  put: (value: string) => void
}

function Choice({ label, value, options, put }: ChoiceProps) {
  return (
    <label className="row">{label}
      <select value={value} onChange={(event) => put(event.target.value)}>
        {options.map(([word, title]) => <option key={word} value={word}>{title}</option>)}
      </select>
    </label>
  )
}

function NothingKnown() {
  return (
    <Section title="No prices">
      <div className="empty teach">
        <p>This service knows no prices. It reads them from SkyPilot’s catalog, and asks AWS where it has keys of AWS.</p>
        <p><a href="/docs/prices">Where prices come from</a></p>
      </div>
    </Section>
  )
}

const kindOf = (price: Price): string => `${price.accelerator}:${price.count}`

/** All nodes with accelerators of which a spot price is known. */
export const kindsOf = (told: Prices | undefined): string[] =>
  [...new Set((told?.prices ?? []).filter((one) => one.accelerator && one.spot_micros_per_hour !== null).map(kindOf))].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }))

const regionsOf = (told: Prices | undefined, kind: string): string[] =>
  [...new Set((told?.prices ?? []).filter((one) => kindOf(one) === kind).map((one) => one.region ?? ''))].filter(Boolean).sort()

const UNKNOWN = 'nobody knows it'
const usd = (micros: number | null): number | null => (micros === null ? null : micros / 1e6)
const toldBy = (of: Price): string => `${of.source}, as of ${moment(Date.parse(of.as_of), 'utc')}`
const Sum = ({ micros, of, by }: { micros: number | null; of: Price; by?: string }) => (micros === null ? <Absent why={UNKNOWN} /> : <Money micros={micros} estimate={of.is_estimate} by={by ?? toldBy(of)} />)

const changed = ({ changes, now }: PriceSeries): string => `of ${many(changes.length, 'price')} that ${now.source} tells`

const AS_OF = { name: 'as_of', title: 'As of' }
const AsOf = ({ of }: { of: Price }) => <><At at={of.as_of} /><Old of={of} /></>
const PAST: Column<PriceSeries>[] = [
  { name: 'place', title: 'Where', value: placeOf, cell: placeOf },
  { name: 'node', title: 'Node', value: ({ now }) => now.instance_type, cell: ({ now }) => now.instance_type ?? <Absent why={UNKNOWN} /> },
  { name: 'now_usd', title: 'Now', by: 'what a node costs an hour as spot', numeric: true, value: ({ now }) => usd(now.spot_micros_per_hour), cell: ({ now }) => <Sum micros={now.spot_micros_per_hour} of={now} /> },
  { name: 'lowest_usd', title: 'Lowest', by: 'the lowest spot price of this time', numeric: true, value: (one) => usd(one.lowest_micros_per_hour), cell: (one) => <Sum micros={one.lowest_micros_per_hour} of={one.now} by={changed(one)} /> },
  { name: 'mean_usd', title: 'Mean', by: 'mean = the sum of each spot price × how long it held, ÷ the time', numeric: true, value: (one) => usd(one.mean_micros_per_hour), cell: (one) => <Sum micros={one.mean_micros_per_hour} of={one.now} by={changed(one)} /> },
  { name: 'highest_usd', title: 'Highest', by: 'the highest spot price of this time', numeric: true, value: (one) => usd(one.highest_micros_per_hour), cell: (one) => <Sum micros={one.highest_micros_per_hour} of={one.now} by={changed(one)} /> },
  { name: 'on_demand_usd', title: 'On demand', by: 'what a node costs an hour on demand', numeric: true, value: ({ now }) => usd(now.on_demand_micros_per_hour), cell: ({ now }) => <Sum micros={now.on_demand_micros_per_hour} of={now} /> },
  { ...AS_OF, value: ({ now }) => now.as_of, cell: ({ now }) => <AsOf of={now} /> },
  { name: 'source', title: 'Source', value: ({ now }) => now.source, cell: ({ now }) => now.source },
]
const NOW: Column<Price>[] = [
  { name: 'accelerator', title: 'Accelerators', value: kindOf, cell: kindOf },
  { name: 'place', title: 'Where', value: (one) => [one.cloud, one.region, one.zone].filter(Boolean).join('/'), cell: (one) => [one.cloud ?? 'any', one.region, one.zone].filter(Boolean).join('/') },
  { name: 'node', title: 'Node', value: (one) => one.instance_type, cell: (one) => one.instance_type ?? <Absent why={UNKNOWN} /> },
  { name: 'spot_usd', title: 'Spot', by: 'what a node costs an hour as spot', numeric: true, value: (one) => usd(one.spot_micros_per_hour), cell: (one) => <Sum micros={one.spot_micros_per_hour} of={one} /> },
  { name: 'on_demand_usd', title: 'On demand', by: 'what a node costs an hour on demand', numeric: true, value: (one) => usd(one.on_demand_micros_per_hour), cell: (one) => <Sum micros={one.on_demand_micros_per_hour} of={one} /> },
  {
    name: 'saved_usd', title: 'Saved', by: 'saved = on demand − spot, for a node and hour', numeric: true, value: (one) => usd(one.saved_micros_per_hour),
    cell: (one) => <><Sum micros={one.saved_micros_per_hour} of={one} by={`= ${exactMoney(one.on_demand_micros_per_hour ?? 0)} − ${exactMoney(one.spot_micros_per_hour ?? 0)}`} /> <small>{one.saved_micros_per_hour !== null && share(one.saved_micros_per_hour, one.on_demand_micros_per_hour ?? 0)}</small></>,
  },
  { ...AS_OF, value: (one) => one.as_of, cell: (one) => <AsOf of={one} /> },
  { name: 'source', title: 'Source', value: (one) => one.source, cell: (one) => one.source },
]
