// Preemptions: history, rates by zone and hour, lifetimes, notices, recovery and costs.

import { useSearchParams } from 'react-router'
import { useNotices, usePreemptionCosts, usePreemptionHistory, usePreemptionRates, type PreemptionFilter } from '../../api/market'
import type { Query } from '../../api/queries'
import type { Losses, Preemptions } from '../../api/types'
import { Heatmap, HeatmapLegend } from '../../charts/heatmap'
import { Intervals } from '../../charts/interval'
import { hourWords, lifetimeText, medianOf } from '../../charts/price-series'
import { SurvivalCurve, SurvivalLegend } from '../../charts/survival'
import { count, duration, elapsed, many, measured, share } from '../../format'
import { Absent, Money, Tile } from '../../ui/number'
import { Loaded, Panel, Section } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { Formula } from '../job/cost'
import { Causes } from './causes'
import { History } from './history'
import { NoticePanel } from './notices'
import { Recovery } from './recovery'
import { CostliestJobs } from './costliest-jobs'

const WINDOWS = { '7d': '7 days', '30d': '30 days', '90d': '90 days', '': 'All time' }
const SPANS = ['1', '2', '3', '6'] as const

export default function PreemptionsPage() {
  const [params, setParams] = useSearchParams()
  const filter: PreemptionFilter = { since: params.get('since') ?? '30d', zone: params.get('zone') ?? '', type: params.get('type') ?? '' }
  const span = params.get('hours') ?? '3'
  const put = (name: string, value: string) => setParams((now) => (now.set(name, value), now), { replace: true })
  const byZone = usePreemptionRates(filter, 'zone')
  const byHour = usePreemptionRates(filter, 'zone-hour', span)
  const notices = useNotices(filter)
  const history = usePreemptionHistory(filter)
  const costs = usePreemptionCosts(filter)
  const is_empty = byZone.data !== undefined && byZone.data.total.node_hours === 0
  return (
    <>
      <title>Preemptions · Holdfast</title>
      <div className="row spread">
        <h1>Preemptions</h1>
        <Filters filter={filter} put={put} />
      </div>
      {is_empty ? <Loaded query={byZone}>{() => <NoData filtered={Boolean(filter.zone || filter.type)} />}</Loaded> : (
        <>
          <Totals query={byZone} />
          <History query={history} />
          <Panel title="Rate by zone and hour" query={byHour} height="tall"
            aside={
              <div className="row">
                {byHour.data && <HeatmapLegend losses={byHour.data.preemptions} />}
                <label className="row">Hours <select value={span} onChange={(event) => put('hours', event.target.value)}>{SPANS.map((one) => <option key={one}>{one}</option>)}</select></label>
              </div>
            }>
            {({ preemptions, request }) => (
              <>
                <Heatmap losses={preemptions} hours={Number(request.hours)} />
                <details>
                  <summary>Show as table</summary>
                  <Table name="fields" caption="Preemptions by zone and hour" columns={[ZONE, HOUR, ...RATES]} rows={preemptions} keyOf={(one) => `${one.zone} ${one.hour}`} />
                </details>
              </>
            )}
          </Panel>
          <Panel title="Time between preemptions" query={byZone} height="middle" aside={<small>mean node-hours, with 90 % CI</small>}>
            {({ preemptions }) => (
              <>
                <Intervals estimates={preemptions.map(estimateOf)} unit="node-hours" label="Mean node-hours between preemptions by zone; the table below has the values" />
                <Table name="zones" caption="Preemptions by zone" columns={[ZONE, ...RATES, ...COSTS]} rows={preemptions} keyOf={(one) => one.zone ?? ''} />
              </>
            )}
          </Panel>
          <div className="two-columns">
            <SurvivalPanel query={byZone} />
            <NoticePanel query={notices} />
            <Panel title="Recovery" query={byZone} height="middle">{({ total }) => <Recovery losses={total} />}</Panel>
            <Panel title="Causes" query={byZone} height="middle">{({ total }) => <Causes causes={total.causes} />}</Panel>
          </div>
          <CostliestJobs query={costs} />
        </>
      )}
    </>
  )
}

function Filters({ filter, put }: { filter: PreemptionFilter; put: (name: string, value: string) => void }) {
  // Without zone and type, since a filtered list would offer only the current selection.
  const zones = usePreemptionRates({ ...filter, zone: '', type: '' }, 'zone')
  const types = usePreemptionRates({ ...filter, zone: '', type: '' }, 'type')
  const named = (found: Preemptions | undefined, of: (one: Losses) => string | null, chosen: string) =>
    [...new Set([...(found?.preemptions ?? []).map((one) => of(one) ?? ''), chosen])].filter(Boolean).sort()
  return (
    <div className="row filters">
      <label className="row">Period
        <select value={filter.since} onChange={(event) => put('since', event.target.value)}>
          {Object.entries(WINDOWS).map(([value, title]) => <option key={value} value={value}>{title}</option>)}
        </select>
      </label>
      <label className="row">Zone
        <select value={filter.zone} onChange={(event) => put('zone', event.target.value)}>
          <option value="">All</option>
          {named(zones.data, (one) => one.zone, filter.zone).map((zone) => <option key={zone}>{zone}</option>)}
        </select>
      </label>
      <label className="row">Node type
        <select value={filter.type} onChange={(event) => put('type', event.target.value)}>
          <option value="">All</option>
          {named(types.data, (one) => one.instance_type, filter.type).map((type) => <option key={type}>{type}</option>)}
        </select>
      </label>
    </div>
  )
}

function Totals({ query }: { query: Query<Preemptions> }) {
  return (
    <Section title="Totals" className="sums">
      <Loaded query={query} height="short">
        {({ total, pending }) => (
          <>
            <dl className="tiles">
              <Tile label="Preemptions" value={count(total.taken)} by={<Formula text="nodes preempted, or lost without notice">{Object.entries(total.causes).map(([cause, n]) => `${cause.replaceAll('_', ' ')}: ${n}`)}</Formula>}>
                in {measured(total.node_hours)} node-hours
              </Tile>
              <MeanTimeBetween total={total} />
              <Tile label="With notice" value={share(total.noticed, total.taken) ?? <Absent why="no preemptions" />} by={<Formula text="with notice = preemptions with a termination notice ÷ all preemptions">{[`${total.noticed} ÷ ${total.taken}`, total.notice_s == null ? 'length of notices unknown' : `mean notice ${measured(total.notice_s)} s`]}</Formula>}>
                {total.notice_s == null ? 'length unknown' : `${measured(total.notice_s)} s on average`}
              </Tile>
              <Tile label="Checkpointed before preemption" value={share(total.notice_used, total.taken) ?? <Absent why="no preemptions" />} by={<Formula text="preemptions with a checkpoint committed within the notice ÷ all preemptions">{[`${total.notice_used} ÷ ${total.taken}`]}</Formula>}>
                of all preemptions
              </Tile>
              <Tile label="Lost work" value={<Money micros={total.lost_micros} simulated={total.simulated} estimate={total.is_price_estimate} />} by={<Formula text="cost of nodes during steps that were recomputed">{[duration(total.lost_ms), `${count(total.lost_steps)} steps`]}</Formula>}>
                {many(total.lost_steps, 'step')}, {duration(total.lost_ms)}
              </Tile>
            </dl>
            {pending > 0 && <p className="note">{many(pending, 'job')} just ended and will be included soon.</p>}
          </>
        )}
      </Loaded>
    </Section>
  )
}

function MeanTimeBetween({ total }: { total: Losses }) {
  const { node_hours_between: between, node_hours_between_low: low, node_hours_between_high: high } = total
  const by = (
    <Formula text="mean time between preemptions = node-hours ÷ preemptions; Garwood interval">
      {[`${measured(total.node_hours)} ÷ ${total.taken}`, between == null ? 'needs at least 5 preemptions' : `90 % CI ${measured(low ?? 0)} to ${measured(high ?? 0)}`]}
    </Formula>
  )
  return (
    <Tile label="Mean time between preemptions" value={between == null ? <Absent why="needs at least 5 preemptions" /> : `${measured(between)} h`} by={by}>
      {low == null || high == null ? 'needs at least 5 preemptions' : `node-hours; 90 % CI ${measured(low)} to ${measured(high)}`}
    </Tile>
  )
}

function SurvivalPanel({ query }: { query: Query<Preemptions> }) {
  return (
    <Panel title="Survival" query={query} height="middle" aside={query.data?.survival_mean_hours != null && <SurvivalLegend />} empty={({ survival }) => (survival.length === 0 ? <p>No preemptions.</p> : null)}>
      {({ survival, survival_mean_hours: mean_hours }) => {
        const median = medianOf(survival)
        return (
          <>
            <SurvivalCurve points={survival} mean_hours={mean_hours} />
            <p className="note">Kaplan-Meier estimate. {median === null ? 'More than half of the attempts survive the observed time.' : `Median attempt lifetime: ${lifetimeText(median)}.`}
              {mean_hours !== null && ` Mean lifetime: ${measured(mean_hours)} h. Below the dashed line, early preemptions are more frequent than a constant rate predicts.`}</p>
          </>
        )
      }}
    </Panel>
  )
}

function NoData({ filtered }: { filtered: boolean }) {
  return (
    <Section title="No data">
      <div className="empty onboarding">
        {filtered ? <p>No nodes match this filter. Choose another zone, node type or period.</p> : (
          <>
            <p>No job had nodes in this period. With the first nodes, this page shows preemption rates and the cost of recovery.</p>
            <p>To try it, simulate a preemption:</p>
            <pre tabIndex={0}>{'holdfast preempt JOB --notice 30s'}</pre>
          </>
        )}
      </div>
    </Section>
  )
}

const estimateOf = (one: Losses) => ({
  name: one.zone ?? '', value: one.node_hours_between, low: one.node_hours_between_low, high: one.node_hours_between_high,
})
const tooFew = <Absent why="needs at least 5 preemptions" />
const ZONE: Column<Losses> = { name: 'zone', title: 'Zone', value: (one) => one.zone, cell: (one) => one.zone }
const HOUR: Column<Losses> = { name: 'hour', title: 'From', value: (one) => one.hour, cell: (one) => `${hourWords(one.hour ?? 0)}:00 UTC` }
const number = (name: string, title: string, by: string, of: (one: Losses) => number | null, words: (value: number) => string = measured): Column<Losses> => ({
  name, title, by, numeric: true, value: of,
  cell: (one) => {
    const value = of(one)
    return value === null ? tooFew : words(value)
  },
})
const RATES: Column<Losses>[] = [
  number('taken', 'Preemptions', 'nodes preempted, or lost without notice', (one) => one.taken, count),
  number('node_hours', 'Node-hours', 'hours with nodes × number of nodes', (one) => one.node_hours),
  number('per_100_node_hours', 'Per 100 node-hours', 'preemptions per 100 node-hours; needs at least 5 preemptions', (one) => one.per_100_node_hours),
  number('low', '90 % CI low', 'lower end of the 90 % confidence interval of the rate (Garwood)', (one) => one.per_100_node_hours_low),
  number('high', '90 % CI high', 'upper end of the 90 % confidence interval of the rate (Garwood)', (one) => one.per_100_node_hours_high),
]
const COSTS: Column<Losses>[] = [
  number('node_hours_between', 'Node-hours between', 'mean node-hours between preemptions; needs at least 5 preemptions', (one) => one.node_hours_between),
  number('noticed', 'With notice', 'preemptions with a termination notice', (one) => one.noticed, count),
  number('notice_used', 'Checkpointed', 'preemptions with a checkpoint committed within the notice', (one) => one.notice_used, count),
  {
    name: 'wait_s', title: 'Without nodes', numeric: true, by: 'mean time from the preemption until the next nodes; h:mm:ss', value: (one) => one.recovery.wait_s,
    cell: (one) => (one.recovery.wait_s === null ? <Absent why="no data" /> : elapsed(1000 * one.recovery.wait_s)),
  },
  {
    name: 'lost_usd', title: 'Lost work', numeric: true, by: 'cost of nodes during steps that were recomputed', value: (one) => one.lost_micros / 1e6,
    cell: (one) => <Money micros={one.lost_micros} simulated={one.simulated} estimate={one.is_price_estimate} by={`${many(one.lost_steps, 'step')}, ${duration(one.lost_ms)}`} />,
  },
]
