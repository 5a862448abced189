// Node prices: spot and on demand by placement, over time, with their source.

import { useSearchParams } from 'react-router'
import { usePriceHistory, usePrices } from '../../api/market'
import type { Price, Prices, PriceSeries } from '../../api/types'
import { placeOf, PriceChart, PriceLegend } from '../../charts/price-chart'
import { exactMoney, many, moment, share } from '../../format'
import { Absent, Money } from '../../ui/number'
import { Loaded, Panel, Section } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { At, Old } from '../../ui/time'

const WINDOWS = { '7d': '7 days', '30d': '30 days', '90d': '90 days' }
/** The preselected accelerators, if listed. */
const FIRST = 'A100:8'

export default function PricesPage() {
  const [params, setParams] = useSearchParams()
  const put = (name: string, value: string) => setParams((now) => (now.set(name, value), now), { replace: true })
  const all = usePrices()
  const kinds = kindsOf(all.data)
  const kind = params.get('node') ?? (kinds.includes(FIRST) ? FIRST : (kinds[0] ?? ''))
  const region = params.get('region') ?? ''
  const since = params.get('since') ?? '30d'
  const past = usePriceHistory(kind, region, since)
  return (
    <>
      <title>Prices · Holdfast</title>
      <div className="row spread">
        <h1>Prices</h1>
        <div className="row filters">
          <Choice label="Accelerators" value={kind} put={(value) => put('node', value)} options={kinds.map((one) => [one, one])} />
          <Choice label="Region" value={region} put={(value) => put('region', value)} options={[['', 'All'], ...regionsOf(all.data, kind).map((one): [string, string] => [one, one])]} />
          <Choice label="Period" value={since} put={(value) => put('since', value)} options={Object.entries(WINDOWS)} />
        </div>
      </div>
      {all.data && kinds.length === 0 ? <NothingKnown /> : (
        <>
          <Panel title="Spot over time" query={past} height="tall" aside={<small>USD per node and hour</small>}
            empty={({ series }) => (series.length === 0 ? <p>No spot price of {kind}{region && ` in ${region}`}. Choose other accelerators or another region.</p> : null)}>
            {(history) => (
              <>
                {history.series.some((one) => one.changes.length > 0) ? <><PriceLegend history={history} /><PriceChart history={history} /></>
                  : <p className="empty">No price history. AWS history needs AWS credentials on the service; current prices are below.</p>}
                {history.left_out > 0 && <p className="note">{many(history.left_out, 'further placement')}; choose a region to see them.</p>}
                <Table name="past" caption="Spot prices in this period" columns={PAST} rows={history.series} isLast={({ now }) => now.is_old} keyOf={(one) => `${placeOf(one)} ${one.now.instance_type}`} />
              </>
            )}
          </Panel>
          <Section title="Current prices" aside={all.data && all.data.refused_count > 0 ? <small>{many(all.data.refused_count, 'catalog row')} rejected as implausible</small> : null}>
            <Loaded query={all} height="tall">
              {({ prices }) => <Table name="now" caption="Current node prices" searchable columns={NOW} rows={prices} isLast={(one) => one.is_old} keyOf={(one) => [one.cloud, one.region, one.zone, one.instance_type, one.accelerator, one.count].join(' ')} />}
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
      <div className="empty onboarding">
        <p>The service has no prices. It reads them from SkyPilot’s catalog, and from AWS if it has AWS credentials.</p>
        <p><a href="/docs/prices">Where prices come from</a></p>
      </div>
    </Section>
  )
}

const kindOf = (price: Price): string => `${price.accelerator}:${price.count}`

/** Accelerators with a known spot price. */
export const kindsOf = (prices: Prices | undefined): string[] =>
  [...new Set((prices?.prices ?? []).filter((one) => one.accelerator && one.spot_micros_per_hour !== null).map(kindOf))].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }))

const regionsOf = (prices: Prices | undefined, kind: string): string[] =>
  [...new Set((prices?.prices ?? []).filter((one) => kindOf(one) === kind).map((one) => one.region ?? ''))].filter(Boolean).sort()

const UNKNOWN = 'unknown'
const usd = (micros: number | null): number | null => (micros === null ? null : micros / 1e6)
const sourceText = (of: Price): string => `${of.source}, as of ${moment(Date.parse(of.as_of), 'utc')}`
const Sum = ({ micros, of, by }: { micros: number | null; of: Price; by?: string }) => (micros === null ? <Absent why={UNKNOWN} /> : <Money micros={micros} estimate={of.is_estimate} by={by ?? sourceText(of)} />)

const changed = ({ changes, now }: PriceSeries): string => `from ${many(changes.length, 'price')} of ${now.source}`

const AS_OF = { name: 'as_of', title: 'As of' }
const AsOf = ({ of }: { of: Price }) => <><At at={of.as_of} /><Old of={of} /></>
const PAST: Column<PriceSeries>[] = [
  { name: 'place', title: 'Where', value: placeOf, cell: placeOf },
  { name: 'node', title: 'Node', value: ({ now }) => now.instance_type, cell: ({ now }) => now.instance_type ?? <Absent why={UNKNOWN} /> },
  { name: 'now_usd', title: 'Spot, now', by: 'spot price of one node for one hour', numeric: true, value: ({ now }) => usd(now.spot_micros_per_hour), cell: ({ now }) => <Sum micros={now.spot_micros_per_hour} of={now} /> },
  { name: 'lowest_usd', title: 'Lowest', by: 'lowest spot price in this period', numeric: true, value: (one) => usd(one.lowest_micros_per_hour), cell: (one) => <Sum micros={one.lowest_micros_per_hour} of={one.now} by={changed(one)} /> },
  { name: 'mean_usd', title: 'Mean', by: 'time-weighted mean of the spot price', numeric: true, value: (one) => usd(one.mean_micros_per_hour), cell: (one) => <Sum micros={one.mean_micros_per_hour} of={one.now} by={changed(one)} /> },
  { name: 'highest_usd', title: 'Highest', by: 'highest spot price in this period', numeric: true, value: (one) => usd(one.highest_micros_per_hour), cell: (one) => <Sum micros={one.highest_micros_per_hour} of={one.now} by={changed(one)} /> },
  { name: 'on_demand_usd', title: 'On demand', by: 'on-demand price of one node for one hour', numeric: true, value: ({ now }) => usd(now.on_demand_micros_per_hour), cell: ({ now }) => <Sum micros={now.on_demand_micros_per_hour} of={now} /> },
  { ...AS_OF, value: ({ now }) => now.as_of, cell: ({ now }) => <AsOf of={now} /> },
  { name: 'source', title: 'Source', value: ({ now }) => now.source, cell: ({ now }) => now.source },
]
const NOW: Column<Price>[] = [
  { name: 'accelerator', title: 'Accelerators', value: kindOf, cell: kindOf },
  { name: 'place', title: 'Where', value: (one) => [one.cloud, one.region, one.zone].filter(Boolean).join('/'), cell: (one) => [one.cloud ?? 'any', one.region, one.zone].filter(Boolean).join('/') },
  { name: 'node', title: 'Node', value: (one) => one.instance_type, cell: (one) => one.instance_type ?? <Absent why={UNKNOWN} /> },
  { name: 'spot_usd', title: 'Spot', by: 'spot price of one node for one hour', numeric: true, value: (one) => usd(one.spot_micros_per_hour), cell: (one) => <Sum micros={one.spot_micros_per_hour} of={one} /> },
  { name: 'on_demand_usd', title: 'On demand', by: 'on-demand price of one node for one hour', numeric: true, value: (one) => usd(one.on_demand_micros_per_hour), cell: (one) => <Sum micros={one.on_demand_micros_per_hour} of={one} /> },
  {
    name: 'saved_usd', title: 'Saved', by: 'saved = on demand − spot, per node and hour', numeric: true, value: (one) => usd(one.saved_micros_per_hour),
    cell: (one) => <><Sum micros={one.saved_micros_per_hour} of={one} by={`= ${exactMoney(one.on_demand_micros_per_hour ?? 0)} − ${exactMoney(one.spot_micros_per_hour ?? 0)}`} /> <small>{one.saved_micros_per_hour !== null && share(one.saved_micros_per_hour, one.on_demand_micros_per_hour ?? 0)}</small></>,
  },
  { ...AS_OF, value: (one) => one.as_of, cell: (one) => <AsOf of={one} /> },
  { name: 'source', title: 'Source', value: (one) => one.source, cell: (one) => one.source },
]
