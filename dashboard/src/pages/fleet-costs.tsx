// Costs by day as a chart, and by part as a table.

import { useSearchParams } from 'react-router'
import { useCosts } from '../api/queries'
import type { Cost } from '../api/types'
import { DailyCostsChart, CostLegend } from '../charts/daily-costs-chart'
import { StackedDailyCosts } from '../charts/stacked-daily-costs'
import { MEASURES, besideWords, dailyCostsOf, totalOf, type Measure } from '../charts/daily-costs'
import { count, duration, exactMoney, many } from '../format'
import { Absent, Money, Saved } from '../ui/number'
import { Loaded, Section } from '../ui/panel'
import { Table, type Column } from '../ui/table'

/** Groupings of costs, and whether days can be stacked by them. */
const BY: Record<string, { word: string; stacks: boolean }> = {
  project: { word: 'project', stacks: true },
  user: { word: 'user', stacks: true },
  tag: { word: 'tag', stacks: true },
  zone: { word: 'zone', stacks: true },
  day: { word: 'day', stacks: false },
  job: { word: 'job', stacks: false },
}

type Submission = ReturnType<typeof useCosts>

export function CostPanel({ costs, since }: { costs: Submission; since: string }) {
  const [params, setParams] = useSearchParams()
  const put = (name: string, value: string) => setParams((now) => (now.set(name, value), now), { replace: true })
  const by = BY[params.get('by') ?? ''] ? (params.get('by') ?? 'project') : 'project'
  const tag = params.get('tag') || 'team'
  const key = by === 'tag' ? `tag:${tag}` : by
  const show = params.get('show')
  const measure: Measure | null = BY[by]?.stacks && show && show in MEASURES ? (show as Measure) : null
  return (
    <Section title="Cost by day" aside={!measure && <CostLegend />}>
      <div className="row by">
        <label className="row">
          By
          <select value={by} onChange={(event) => put('by', event.target.value)}>
            {Object.entries(BY).map(([name, { word }]) => <option key={name} value={name}>{word}</option>)}
          </select>
        </label>
        {by === 'tag' && (
          <label className="row">
            Tag <input defaultValue={tag} key={tag} onBlur={(event) => put('tag', event.target.value)} onKeyDown={(event) => event.key === 'Enter' && event.currentTarget.blur()} />
          </label>
        )}
        {BY[by]?.stacks && (
          <label className="row">
            Show
            <select value={measure ?? ''} onChange={(event) => put('show', event.target.value)}>
              <option value="">total</option>
              {Object.entries(MEASURES).map(([name, { word }]) => <option key={name} value={name}>{`${word}, stacked`}</option>)}
            </select>
          </label>
        )}
      </div>
      <Loaded query={costs} height="tall" empty={(data) => (data.costs.length === 0 ? <p>No costs in {since.replace('d', ' days')}.</p> : null)}>
        {(data) => (
          <>
            {measure ? <Stacked by={key} since={since} measure={measure} /> : <DailyCostsChart costs={data.costs} />}
            {data.pending > 0 && <p className="note">{many(data.pending, 'job')} just ended and will be included soon.</p>}
            <Totals by={by} asked={key} since={since} />
          </>
        )}
      </Loaded>
    </Section>
  )
}

function Stacked({ by, since, measure }: { by: string; since: string; measure: Measure }) {
  return (
    <Loaded query={useCosts('day', since, by)}>
      {({ costs, left_out }) => (
        <>
          <StackedDailyCosts stacks={dailyCostsOf(costs, measure)} what={`${MEASURES[measure].word} by ${by}`} />
          {left_out > 0 && <p className="note warn">⚠ Not drawn: {many(left_out, 'value')} of the newest days. Choose a shorter period.</p>}
        </>
      )}
    </Loaded>
  )
}

function Totals({ by, asked, since }: { by: string; asked: string; since: string }) {
  return (
    <Loaded query={useCosts(asked, since)}>
      {({ costs, left_out }) => (
        <Table name="costs" caption={`Cost by ${by}`} columns={COSTS} rows={costs} keyOf={(cost) => cost.key}
          foot={left_out > 0 && <p className="note">The most expensive ones; <code>holdfast costs --by {asked}</code> lists {count(left_out)} more.</p>} />
      )}
    </Loaded>
  )
}

const usd = exactMoney
const UNPRICED = ', without what has no known price'
const amount = (name: string, title: string, of: (cost: Cost) => number, by: string, facts: (cost: Cost) => string): Column<Cost> => ({
  name: `${name}_usd`, title, by, numeric: true, value: (cost) => of(cost) / 1e6,
  cell: (cost) => <Money micros={of(cost)} simulated={cost.simulated} estimate={cost.is_price_estimate} by={facts(cost)} />,
})

function Total({ cost }: { cost: Cost }) {
  const parts = `= paid ${usd(cost.paid_micros)} + beside the nodes ${usd(cost.charged_micros)}${cost.has_unpriced ? UNPRICED : ''}`
  return <>{cost.has_unpriced && '≥ '}<Money micros={totalOf(cost)} simulated={cost.simulated} estimate={cost.is_price_estimate} by={parts} /></>
}

/** What is beside the nodes. Without any known price there is no amount. */
function Beside({ cost }: { cost: Cost }) {
  const { charged_micros, has_unpriced } = cost
  if (has_unpriced && charged_micros === 0) return <Absent why="no price known" />
  return <>{has_unpriced && '≥ '}<Money micros={charged_micros} by={besideWords(cost)} /></>
}

const COSTS: Column<Cost>[] = [
  { name: 'key', title: 'Group', value: (cost) => cost.key, cell: (cost) => cost.label ?? (cost.key || <Absent why="none" />) },
  { name: 'jobs', title: 'Jobs', numeric: true, value: (cost) => cost.jobs, cell: (cost) => count(cost.jobs) },
  amount('paid', 'Paid', (cost) => cost.paid_micros, 'paid = useful + wasted + not measured + adjustments', ({ micros, adjusted_micros }) =>
    `= useful ${usd(micros.useful)} + wasted ${usd(micros.setup + micros.restore + micros.stalled + micros.lost)} + not measured ${usd(micros.unmeasured)} + adjustments ${usd(adjusted_micros)}`),
  amount('on_demand', 'On demand', (cost) => cost.on_demand_micros, 'on demand = one setup and the useful time of each job at the on-demand price; unmeasured time at the price paid', ({ jobs, ms }) =>
    `for ${many(jobs, 'job')}, ${duration(ms.useful)} of useful time`),
  {
    ...amount('saved', 'Saved', (cost) => cost.saved_micros, 'saved = on demand − paid', () => ''),
    cell: (cost) => <Saved micros={cost.saved_micros} simulated={cost.simulated} estimate={cost.is_price_estimate} by={`saved = on demand ${usd(cost.on_demand_micros)} − paid ${usd(cost.paid_micros)}`} />,
  },
  amount('wasted', 'Wasted', (cost) => cost.wasted_micros, 'wasted = setup + restore + stalled + lost', ({ micros }) =>
    `= setup ${usd(micros.setup)} + restore ${usd(micros.restore)} + stalled ${usd(micros.stalled)} + lost ${usd(micros.lost)}`),
  amount('unmeasured', 'Not measured', (cost) => cost.micros.unmeasured, 'cost of programs that reported no progress', ({ ms }) => `for ${duration(ms.unmeasured)} with nodes`),
  {
    ...amount('charged', 'Beside nodes', (cost) => cost.charged_micros, '', () => ''),
    by: 'beside the nodes = storage + requests + egress + disks',
    cell: (cost) => <Beside cost={cost} />,
  },
  {
    ...amount('total', 'Total', totalOf, 'total = paid + beside the nodes', () => ''),
    cell: (cost) => <Total cost={cost} />,
  },
]
