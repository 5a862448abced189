// Monthly budgets of projects and users.

import { send } from '../../api/client'
import { useBudgets } from '../../api/people'
import { useProjects } from '../../api/queries'
import type { Budget, Can, CurrentUser } from '../../api/types'
import { exactMoney, money, share } from '../../format'
import { Action } from '../../ui/action'
import { Choice, Field } from '../../ui/field'
import { Explained, Money } from '../../ui/number'
import { Loaded } from '../../ui/panel'
import { ACTIONS, Table, type Column } from '../../ui/table'
import { Formula } from '../job/cost'
import { formText, splitList } from './shared'

const path = (scope: string, name: string) => `/v1/budgets/${scope}/${encodeURIComponent(name)}`

function put(scope: string, name: string, form: FormData) {
  const warn_at = splitList(formText(form, 'warn_at')).map(Number)
  return send('PUT', path(scope, name), { monthly_usd: formText(form, 'monthly_usd'), warn_at, on_reached: formText(form, 'on_reached') })
}

export function Budgets({ who }: { who: CurrentUser }) {
  const projects = useProjects()
  const of_service = who.can?.manage_service
  const canOf = ({ scope, name }: Budget): Can | undefined =>
    scope === 'user' ? of_service : projects.data?.find((one) => one.name === name)?.can?.set_budget
  const mine = projects.data?.filter((one) => one.can?.set_budget?.allowed) ?? []
  const may_any: Can = mine[0]?.can?.set_budget ?? projects.data?.[0]?.can?.set_budget ?? { allowed: false, reason: 'you are not a member of any project' }
  return (
    <Loaded query={useBudgets()} empty={(all) => (all.length === 0 ? <p>No budgets: spending is not limited.</p> : null)} before={
      <div className="row">
        <Action title="New project budget" asks="New project budget" can={may_any} act={(form) => put('project', formText(form, 'name'), form)}>
          <Choice name="name" label="Project" options={mine.map((one) => one.name)} />
          <Fields />
        </Action>
        <Action title="New user budget" asks="New user budget" can={of_service} act={(form) => put('user', formText(form, 'name'), form)}>
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
      <Field name="monthly_usd" label="Monthly budget (USD)" value={budget ? String(budget.monthly_micros / 1e6) : ''} />
      <Field name="warn_at" label="Warn at (percent)" value={(budget?.warn_at ?? [50, 80, 95]).join(', ')} hint="Each warning is sent once a month." />
      <Choice name="on_reached" label="When spent" value={budget?.on_reached ?? 'pause'} options={['pause', 'warn']} hint="pause: jobs are paused and new ones do not start." />
    </>
  )
}

const columns = (canOf: (budget: Budget) => Can | undefined): Column<Budget>[] => [
  { name: 'of', title: 'Scope', value: (one) => `${one.scope} ${one.name}`, cell: (one) => <><span className="quiet">{one.scope}</span> {one.name}</> },
  { name: 'spent_usd', title: 'Spent this month', by: 'cost of its jobs this month, without adjustments', value: (one) => one.spent_micros / 1e6, cell: (one) => <SpentBar budget={one} /> },
  { name: 'monthly_usd', title: 'Budget', numeric: true, value: (one) => one.monthly_micros / 1e6, by: 'limit per month, in UTC', cell: (one) => <Money micros={one.monthly_micros} by={`from ${one.month}-01 00:00 UTC to the end of the month`} /> },
  { name: 'usd_per_hour', title: 'Per hour, now', numeric: true, value: (one) => one.micros_per_hour / 1e6, by: 'current price of all running nodes', cell: (one) => <Money micros={one.micros_per_hour} {...softOf(one)} by="per hour, at current prices" /> },
  { name: 'warned_at', title: 'Warned at', value: (one) => one.warned_at.join(' '), cell: (one) => one.warned_at.map((percent) => `${percent} %`).join(', ') || <span className="quiet">not yet</span> },
  { name: 'on_reached', title: 'When spent', value: (one) => one.on_reached, cell: (one) => (one.is_spent ? `✕ spent: ${one.on_reached}` : one.on_reached) },
  {
    name: ACTIONS, title: 'Actions', value: () => null,
    cell: (one) => (
      <>
        <Action title="Change" asks={`Budget of ${one.scope} ${one.name}`} can={canOf(one)} act={(form) => put(one.scope, one.name, form)}>
          <Fields budget={one} />
        </Action>
        <Action title="Remove" asks={`Remove the budget of ${one.scope} ${one.name}?`} danger can={canOf(one)} act={() => send('DELETE', path(one.scope, one.name))} />
      </>
    ),
  },
]

const softOf = ({ simulated, is_price_estimate }: Budget) => ({ simulated, estimate: is_price_estimate })

function SpentBar({ budget }: { budget: Budget }) {
  const { spent_micros, committed_micros, monthly_micros, month, is_spent, simulated, is_price_estimate } = budget
  const facts = [exactMoney(spent_micros), `reserved for saving and releasing nodes: ${exactMoney(committed_micros)}`]
  if (simulated) facts.push('includes simulated prices, which are not billed')
  if (is_price_estimate) facts.push('includes unknown prices, which are estimated high')
  return (
    <span className={is_spent ? 'spent over' : 'spent'}>
      <progress value={Math.min(spent_micros, monthly_micros)} max={Math.max(1, monthly_micros)} aria-label={`spent ${money(spent_micros)} of ${money(monthly_micros)}`} />
      <Explained by={<Formula text={`spent = cost of its jobs in ${month}, in UTC`}>{facts}</Formula>} in_table>
        <Money micros={spent_micros} {...softOf(budget)} />, {share(spent_micros, monthly_micros) ?? '–'}
      </Explained>
    </span>
  )
}
