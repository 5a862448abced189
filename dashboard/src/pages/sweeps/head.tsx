// The head of a sweep: what its jobs share, actions on all of them, and totals.

import { Link } from 'react-router'
import { send } from '../../api/client'
import { useProjects } from '../../api/queries'
import type { SweepDetail } from '../../api/types'
import type { Compared } from '../../charts/parallel-axes'
import { count, exactMoney, many, measured, money, share } from '../../format'
import { Action } from '../../ui/action'
import { Field } from '../../ui/field'
import { Absent, Money, Tile } from '../../ui/number'
import { Section } from '../../ui/panel'
import { Ago } from '../../ui/time'
import { Formula } from '../job/cost'
import { SelectionActions } from '../selection'
import { statesText } from '.'

/** Whether an amount is simulated, or estimated high. */
export interface Soft {
  simulated: boolean
  estimate: boolean
}

interface HeadProps {
  sweep: SweepDetail
  best: Compared | null
  metric: string
  soft: Soft
}

export function SweepHead({ sweep, best, metric, soft }: HeadProps) {
  const fixed = Object.entries(sweep.params).filter(([, values]) => values.length === 1)
  return (
    <>
      <div className="head">
        <p className="crumbs"><Link to="/sweeps">Sweeps</Link> / <span className="id">{sweep.id}</span></p>
        <div className="row spread">
          <h1>{sweep.name}</h1>
          <SweepActions sweep={sweep} />
        </div>
        <div className="row facts">
          <span>project <strong>{sweep.project}</strong></span>
          <span>{sweep.owner ? <>owner <strong>{sweep.owner}</strong></> : 'submitted by the service owner'}</span>
          <span>submitted <Ago at={sweep.created_at} /></span>
          <span>{sweep.parallel === null ? 'all jobs may run at once' : `at most ${many(sweep.parallel, 'job')} at once`}</span>
          {sweep.stop && <span>stops jobs whose {sweep.stop.metric} is worse than the median{sweep.stop.grace_steps > 0 && ` from step ${count(sweep.stop.grace_steps)} on`}</span>}
          {fixed.map(([name, [value]]) => <span key={name} className="tag">{name}={value}</span>)}
          <Link to={`/?${new URLSearchParams({ selector: `sweep=${sweep.id}` })}`}>Its jobs in the fleet</Link>
        </div>
      </div>
      <Totals sweep={sweep} best={best} metric={metric} soft={soft} />
    </>
  )
}

function SweepActions({ sweep }: { sweep: SweepDetail }) {
  const projects = useProjects().data
  // Until the projects are known, the action waits instead of giving a wrong reason.
  const can = projects?.find(({ name }) => name === sweep.project)?.can?.steer
  const target = { selection: { selector: `sweep=${sweep.id}` } }
  return (
    <div className="row actions">
      <SelectionActions title="Pause" asks="Pause the jobs of this sweep" target={target} actions={['pause']} />
      <SelectionActions title="Resume" asks="Resume the jobs of this sweep" target={target} actions={['resume']} />
      {!projects ? <button type="button" disabled>Limits</button> : <Action title="Limits" asks={`Limits of ${sweep.name}`} confirm="Change limits" can={can} act={(form) => send('PATCH', `/v1/sweeps/${sweep.id}`, limitsOf(form))}>
        <p>Jobs that the budget has paused wait for a resume.</p>
        <Field name="max_cost_usd" label="Maximum cost of all jobs (USD)" value={sweep.max_cost_usd} hint="Empty: no maximum." />
        <Field name="parallel" label="Jobs at once" value={sweep.parallel} hint="Empty: all." />
      </Action>}
      <SelectionActions title="Cancel" asks="Cancel the jobs of this sweep" target={target} actions={['cancel']} />
    </div>
  )
}

function limitsOf(form: FormData): Record<string, string | number | null> {
  const text = (name: string) => String(form.get(name) ?? '').trim()
  const parallel = text('parallel')
  // The service explains what is not a number.
  return { max_cost_usd: text('max_cost_usd') || null, parallel: parallel === '' ? null : /^\d+$/.test(parallel) ? Number(parallel) : parallel }
}

function Totals({ sweep, best, metric, soft }: HeadProps) {
  const most = sweep.max_cost_usd === null ? null : 1e6 * Number(sweep.max_cost_usd)
  const stopped = sweep.trials.filter(({ is_stopped_early }) => is_stopped_early).length
  const listed = sweep.trials.reduce((sum, trial) => sum + trial.paid_micros, 0)
  return (
    <Section title="Totals" className="sums">
      <dl className="tiles">
        <Tile label="Paid" value={<Money micros={sweep.paid_micros} {...soft} />}
          by={<Formula text="paid = cost of all its jobs so far, without copies of them">{[`${many(sweep.trials.length, 'job')} ${exactMoney(listed)}`, `removed jobs ${exactMoney(sweep.paid_micros - listed)}`]}</Formula>}>
          {most === null ? 'no budget' : (
            <span className={sweep.paid_micros >= most ? 'spent over' : 'spent'}>
              <progress value={Math.min(sweep.paid_micros, most)} max={Math.max(1, most)} aria-label={`spent ${money(sweep.paid_micros)} of ${money(most)}`} />
              {share(sweep.paid_micros, most) ?? '–'} of {money(most)}
            </span>
          )}
        </Tile>
        <Tile label="Jobs" value={count(sweep.job_count)} by={<Formula text="jobs = combinations of the parameters">{[statesText(sweep.states) || 'all were removed']}</Formula>}>
          {statesText(sweep.states)}
        </Tile>
        <Tile label={metric ? `Best ${metric}` : 'Best'} value={best?.best == null ? <Absent why="no values yet" /> : measured(best.best)} by="best value that a job has logged at any step">
          {best?.best == null ? 'no values yet' : <Link to={`/jobs/${best.trial.job_id}`}>{best.name}</Link>}
        </Tile>
        {(sweep.stop || stopped > 0) && (
          <Tile label="Stopped early" value={count(stopped)} by="jobs that the median rule has cancelled">
            of {many(sweep.trials.length, 'job')}
          </Tile>
        )}
      </dl>
    </Section>
  )
}
