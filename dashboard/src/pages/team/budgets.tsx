// What projects and users may spend in a month, and what they have.

import { send } from '../../api/client'
import { useBudgets } from '../../api/people'
import { useProjects } from '../../api/queries'
import type { Budget, Can, Who } from '../../api/types'
import { exactMoney, money, share } from '../../format'
import { Action } from '../../ui/action'
import { Choice, Field } from '../../ui/field'
import { Explained, Money } from '../../ui/figure'
import { Loaded } from '../../ui/panel'
import { ACTIONS, Table, type Column } from '../../ui/table'
import { Formula } from '../job/money'
import { listed, said } from './words'

const path = (scope: string, name: string) => `/v1/budgets/${scope}/${encodeURIComponent(name)}`

function put(scope: string, name: string, form: FormData) {
  const warn_at = listed(said(form, 'warn_at')).map(Number)
  return send('PUT', path(scope, name), { monthly_usd: said(form, 'monthly_usd'), warn_at, on_reached: said(form, 'on_reached') })
}

export function Budgets({ who }: { who: Who }) {
  const projects = useProjects()
  const of_service = who.can?.manage_service
  const canOf = ({ scope, name }: Budget): Can | undefined =>
    scope === 'user' ? of_service : projects.data?.find((one) => one.name === name)?.can?.set_budget
  const mine = projects.data?.filter((one) => one.can?.set_budget?.allowed) ?? []
  const may_any: Can = mine[0]?.can?.set_budget ?? projects.data?.[0]?.can?.set_budget ?? { allowed: false, reason: 'you are in no project' }
  return (
    <Loaded query={useBudgets()} empty={(all) => (all.length === 0 ? <p>Nobody has a budget: everybody may spend what they like.</p> : null)} before={
      <div className="row">
        <Action title="Budget of a project" asks="What may a project spend in a month?" can={may_any} act={(form) => put('project', said(form, 'name'), form)}>
          <Choice name="name" label="Project" options={mine.map((one) => one.name)} />
          <Fields />
        </Action>
        <Action title="Budget of a user" asks="What may a user spend in a month?" can={of_service} act={(form) => put('user', said(form, 'name'), form)}>
          <Field name="name" label="User" />
          <Fields />
        </Action>
      </div>
    }>
      {(all) => <Table name="budgets" caption="Budgets" columns={columns(canOf)} rows={all} keyOf={(one) => `${one.scope}/${one.name}`} />}
    </Loaded>
  )
}

function Fields({ budget }: { budget?: Budget }) {
  return (
    <>
      <Field name="monthly_usd" label="US dollars a month" value={budget ? String(budget.monthly_micros / 1e6) : ''} />
      <Field name="warn_at" label="Warn at percent" value={(budget?.warn_at ?? [50, 80, 95]).join(', ')} hint="Each is told once in a month." />
      <Choice name="on_reached" label="Once it is spent" value={budget?.on_reached ?? 'pause'} options={['pause', 'warn']} hint="pause: its jobs are paused, and none is begun." />
    </>
  )
}

const columns = (canOf: (budget: Budget) => Can | undefined): Column<Budget>[] => [
  { name: 'of', title: 'Of', value: (one) => `${one.scope} ${one.name}`, cell: (one) => <><span className="quiet">{one.scope}</span> {one.name}</> },
  { name: 'spent_usd', title: 'Spent in this month', by: 'spent = what its jobs have cost in this month, without the rules of providers', value: (one) => one.spent_micros / 1e6, cell: (one) => <Spent budget={one} /> },
  { name: 'monthly_usd', title: 'Budget', numeric: true, value: (one) => one.monthly_micros / 1e6, by: 'what may be spent in a month, in UTC', cell: (one) => <Money micros={one.monthly_micros} by={`from ${one.month}-01 00:00 UTC on, until the month is over`} /> },
  { name: 'usd_per_hour', title: 'Now, an hour', numeric: true, value: (one) => one.micros_per_hour / 1e6, by: 'what the nodes that stand now cost together', cell: (one) => <Money micros={one.micros_per_hour} {...softOf(one)} by="an hour, at the prices of now" /> },
  { name: 'warned_at', title: 'Warned at', value: (one) => one.warned_at.join(' '), cell: (one) => one.warned_at.map((percent) => `${percent} %`).join(', ') || <span className="quiet">not yet</span> },
  { name: 'on_reached', title: 'Then', value: (one) => one.on_reached, cell: (one) => (one.is_spent ? `✕ spent: ${one.on_reached}` : one.on_reached) },
  {
    name: ACTIONS, title: 'Change', value: () => null,
    cell: (one) => (
      <>
        <Action title="Change" asks={`Budget of ${one.scope} ${one.name}`} can={canOf(one)} act={(form) => put(one.scope, one.name, form)}>
          <Fields budget={one} />
        </Action>
        <Action title="Remove" asks={`Let ${one.scope} ${one.name} spend what they like?`} danger can={canOf(one)} act={() => send('DELETE', path(one.scope, one.name))} />
      </>
    ),
  },
]

const softOf = ({ simulated, is_price_estimate }: Budget) => ({ simulated, estimate: is_price_estimate })

function Spent({ budget }: { budget: Budget }) {
  const { spent_micros, committed_micros, monthly_micros, month, is_spent, simulated, is_price_estimate } = budget
  const facts = [exactMoney(spent_micros), `to come until its workers have saved and left: ${exactMoney(committed_micros)}`]
  if (simulated) facts.push('some of its prices are simulated: nobody pays them')
  if (is_price_estimate) facts.push('some of its prices nobody told: they are taken to be high')
  return (
    <span className={is_spent ? 'spent over' : 'spent'}>
      <progress value={Math.min(spent_micros, monthly_micros)} max={Math.max(1, monthly_micros)} aria-label={`spent ${money(spent_micros)} of ${money(monthly_micros)}`} />
      <Explained by={<Formula words={`spent = what its jobs have cost in ${month}, in UTC`}>{facts}</Formula>} in_table>
        <Money micros={spent_micros} {...softOf(budget)} />, {share(spent_micros, monthly_micros) ?? '–'}
      </Explained>
    </span>
  )
}
