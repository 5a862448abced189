// What became of nodes: how often they are taken, where and when, what warning they get, and what that costs.

import { useSearchParams } from 'react-router'
import { useLosses, useNotices, useTolls, type Wanted } from '../../api/market'
import type { Query } from '../../api/queries'
import type { Losses, Preemptions } from '../../api/types'
import { Heat, HeatKey } from '../../charts/heat'
import { Intervals } from '../../charts/interval'
import { hourWords, lasting, medianOf } from '../../charts/market'
import { SurvivalCurve, SurvivalKey } from '../../charts/survival'
import { count, duration, many, measured, share } from '../../format'
import { Absent, Money, Tile } from '../../ui/figure'
import { Loaded, Panel, Section } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { Formula } from '../job/money'
import { Causes } from './causes'
import { NoticePanel } from './notices'
import { Recovery } from './recovery'
import { WorstJobs } from './worst'

const WINDOWS = { '7d': '7 days', '30d': '30 days', '90d': '90 days', '': 'All time' }
const SPANS = ['1', '2', '3', '6'] as const

export default function PreemptionsPage() {
  const [words, setWords] = useSearchParams()
  const wanted: Wanted = { since: words.get('since') ?? '30d', zone: words.get('zone') ?? '', type: words.get('type') ?? '' }
  const span = words.get('hours') ?? '3'
  const put = (name: string, value: string) => setWords((now) => (now.set(name, value), now), { replace: true })
  const byZone = useLosses(wanted, 'zone')
  const byHour = useLosses(wanted, 'zone-hour', span)
  const notices = useNotices(wanted)
  const tolls = useTolls(wanted)
  const nobody = byZone.data !== undefined && byZone.data.total.node_hours === 0
  return (
    <>
      <title>Preemptions · Holdfast</title>
      <div className="row spread">
        <h1>Preemptions</h1>
        <Filters wanted={wanted} put={put} />
      </div>
      {nobody ? <Loaded query={byZone}>{() => <NothingYet filtered={Boolean(wanted.zone || wanted.type)} />}</Loaded> : (
        <>
          <Sums query={byZone} />
          <Panel title="Where and when" query={byHour} height="tall"
            aside={
              <div className="row">
                {byHour.data && <HeatKey losses={byHour.data.preemptions} />}
                <label className="row">Hours <select value={span} onChange={(event) => put('hours', event.target.value)}>{SPANS.map((one) => <option key={one}>{one}</option>)}</select></label>
              </div>
            }>
            {({ preemptions, asked }) => (
              <>
                <Heat losses={preemptions} hours={Number(asked.hours)} />
                <details>
                  <summary>The same as a table</summary>
                  <Table name="fields" caption="Taken by zone and hour" columns={[ZONE, HOUR, ...RATES]} rows={preemptions} keyOf={(one) => `${one.zone} ${one.hour}`} />
                </details>
              </>
            )}
          </Panel>
          <Panel title="Time between preemptions" query={byZone} height="middle" aside={<small>node-hours from one to the next, with its 90 % interval</small>}>
            {({ preemptions }) => (
              <>
                <Intervals estimates={preemptions.map(estimateOf)} unit="node-hours" label="Node-hours from one preemption to the next, by zone; the table below has the figures" />
                <Table name="zones" caption="Preemptions by zone" columns={[ZONE, ...RATES, ...COSTS]} rows={preemptions} keyOf={(one) => one.zone ?? ''} />
              </>
            )}
          </Panel>
          <div className="pairs">
            <SurvivalPanel query={byZone} />
            <NoticePanel query={notices} />
            <Panel title="Recovery" query={byZone} height="middle">{({ total }) => <Recovery losses={total} />}</Panel>
            <Panel title="Causes" query={byZone} height="middle">{({ total }) => <Causes causes={total.causes} />}</Panel>
          </div>
          <WorstJobs query={tolls} />
        </>
      )}
    </>
  )
}

function Filters({ wanted, put }: { wanted: Wanted; put: (name: string, value: string) => void }) {
  // Of all, or what was chosen would leave nothing else to choose.
  const zones = useLosses({ ...wanted, zone: '', type: '' }, 'zone')
  const types = useLosses({ ...wanted, zone: '', type: '' }, 'type')
  const named = (told: Preemptions | undefined, of: (one: Losses) => string | null, chosen: string) =>
    [...new Set([...(told?.preemptions ?? []).map((one) => of(one) ?? ''), chosen])].filter(Boolean).sort()
  return (
    <div className="row filters">
      <label className="row">Since
        <select value={wanted.since} onChange={(event) => put('since', event.target.value)}>
          {Object.entries(WINDOWS).map(([value, title]) => <option key={value} value={value}>{title}</option>)}
        </select>
      </label>
      <label className="row">Zone
        <select value={wanted.zone} onChange={(event) => put('zone', event.target.value)}>
          <option value="">All</option>
          {named(zones.data, (one) => one.zone, wanted.zone).map((zone) => <option key={zone}>{zone}</option>)}
        </select>
      </label>
      <label className="row">Node
        <select value={wanted.type} onChange={(event) => put('type', event.target.value)}>
          <option value="">All</option>
          {named(types.data, (one) => one.instance_type, wanted.type).map((type) => <option key={type}>{type}</option>)}
        </select>
      </label>
    </div>
  )
}

function Sums({ query }: { query: Query<Preemptions> }) {
  return (
    <Section title="In all" className="sums">
      <Loaded query={query} height="short">
        {({ total, pending }) => (
          <>
            <dl className="tiles">
              <Tile label="Taken" value={count(total.taken)} by={<Formula words="taken = preempted, or gone without a notice">{Object.entries(total.causes).map(([cause, n]) => `${cause.replaceAll('_', ' ')}: ${n}`)}</Formula>}>
                in {measured(total.node_hours)} node-hours
              </Tile>
              <Between total={total} />
              <Tile label="Announced" value={share(total.noticed, total.taken) ?? <Absent why="nothing was taken" />} by={<Formula words="announced = losses with a notice ÷ all that were taken">{[`${total.noticed} ÷ ${total.taken}`, total.notice_s == null ? 'no notice said how long' : `${measured(total.notice_s)} s of warning on average`]}</Formula>}>
                {total.notice_s == null ? 'no warning was told' : `${measured(total.notice_s)} s ahead`}
              </Tile>
              <Tile label="Saved in time" value={share(total.notice_used, total.taken) ?? <Absent why="nothing was taken" />} by={<Formula words="saved in time = losses with a checkpoint after the notice ÷ all that were taken">{[`${total.notice_used} ÷ ${total.taken}`]}</Formula>}>
                of all that were taken
              </Tile>
              <Tile label="Lost work" value={<Money micros={total.lost_micros} simulated={total.simulated} estimate={total.is_price_estimate} />} by={<Formula words="lost work = what nodes cost while they made steps that were made again">{[duration(total.lost_ms), `${count(total.lost_steps)} steps`]}</Formula>}>
                {many(total.lost_steps, 'step')}, {duration(total.lost_ms)}
              </Tile>
            </dl>
            {pending > 0 && <p className="note">{many(pending, 'job')} ended a moment ago, and will be in it soon.</p>}
          </>
        )}
      </Loaded>
    </Section>
  )
}

function Between({ total }: { total: Losses }) {
  const { node_hours_between: between, node_hours_between_low: low, node_hours_between_high: high } = total
  const by = (
    <Formula words="between two = node-hours ÷ taken; its interval is Garwood’s">
      {[`${measured(total.node_hours)} ÷ ${total.taken}`, between == null ? 'told from five on' : `90 % interval ${measured(low ?? 0)} to ${measured(high ?? 0)}`]}
    </Formula>
  )
  return (
    <Tile label="Between two" value={between == null ? <Absent why="fewer than five were taken" /> : `${measured(between)} h`} by={by}>
      {low == null || high == null ? 'too few for a rate' : `${measured(low)} to ${measured(high)} node-hours`}
    </Tile>
  )
}

function SurvivalPanel({ query }: { query: Query<Preemptions> }) {
  return (
    <Panel title="Survival" query={query} height="middle" aside={query.data?.survival_mean_hours != null && <SurvivalKey />} empty={({ survival }) => (survival.length === 0 ? <p>No placement was taken.</p> : null)}>
      {({ survival, survival_mean_hours: mean_hours }) => {
        const median = medianOf(survival)
        return (
          <>
            <SurvivalCurve points={survival} mean_hours={mean_hours} />
            <p className="note">{median === null ? 'More than half of all placements outlast what was seen.' : `Half of all placements last ${lasting(median)}.`} By Kaplan and Meier.
              {mean_hours !== null && ` One was taken for every ${measured(mean_hours)} hours that placements have stood. Where the curve is below the dashed line, more are taken young than at a steady rate.`}</p>
          </>
        )
      }}
    </Panel>
  )
}

function NothingYet({ filtered }: { filtered: boolean }) {
  return (
    <Section title="Nothing stood">
      <div className="empty teach">
        {filtered ? <p>No nodes of this kind stood in this time. Choose another zone, node or time.</p> : (
          <>
            <p>No job has had nodes in this time. Once one has, this page tells how often they are taken, and what it costs to come back.</p>
            <p>To see it at once, be the market yourself:</p>
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
const few = <Absent why="fewer than five were taken" />
const ZONE: Column<Losses> = { name: 'zone', title: 'Zone', value: (one) => one.zone, cell: (one) => one.zone }
const HOUR: Column<Losses> = { name: 'hour', title: 'From', value: (one) => one.hour, cell: (one) => `${hourWords(one.hour ?? 0)}:00 UTC` }
const figure = (name: string, title: string, by: string, of: (one: Losses) => number | null, words: (value: number) => string = measured): Column<Losses> => ({
  name, title, by, numeric: true, value: of,
  cell: (one) => {
    const value = of(one)
    return value === null ? few : words(value)
  },
})
const RATES: Column<Losses>[] = [
  figure('taken', 'Taken', 'taken = preempted, or gone without a notice', (one) => one.taken, count),
  figure('node_hours', 'Node-hours', 'node-hours = hours with nodes × nodes', (one) => one.node_hours),
  figure('per_100_node_hours', 'In 100 node-hours', '100 × taken ÷ node-hours; from five on', (one) => one.per_100_node_hours),
  figure('low', 'at least', 'the lower end of the interval in which the true rate lies nine times in ten, as Garwood has it', (one) => one.per_100_node_hours_low),
  figure('high', 'at most', 'the upper end of that interval', (one) => one.per_100_node_hours_high),
]
const COSTS: Column<Losses>[] = [
  figure('node_hours_between', 'Between two', 'node-hours ÷ taken; from five on', (one) => one.node_hours_between),
  figure('noticed', 'Announced', 'of those that were taken, how many had a notice', (one) => one.noticed, count),
  figure('notice_used', 'Saved in time', 'of those that were announced, how many had a checkpoint after the notice', (one) => one.notice_used, count),
  {
    name: 'wait_s', title: 'Without nodes', numeric: true, by: 'from the loss until the next nodes, on average', value: (one) => one.recovery.wait_s,
    cell: (one) => (one.recovery.wait_s === null ? <Absent why="nobody told" /> : duration(1000 * one.recovery.wait_s)),
  },
  {
    name: 'lost_usd', title: 'Lost work', numeric: true, by: 'lost work = what nodes cost while they made steps that were made again', value: (one) => one.lost_micros / 1e6,
    cell: (one) => <Money micros={one.lost_micros} simulated={one.simulated} estimate={one.is_price_estimate} by={`${many(one.lost_steps, 'step')}, ${duration(one.lost_ms)}`} />,
  },
]
