// The head of a job page: state, actions, progress and what the job runs on.

import type { ReactNode } from 'react'
import { Link } from 'react-router'
import { useSeries } from '../../api/queries'
import type { Bill, Job, JobEvent, Rates, SeriesPage } from '../../api/types'
import { endsIn, runTimeMs, stepParts, stepRate } from '../../charts/progress'
import { newestValue, tokenSeries } from '../../charts/series'
import { count, duration, many, measured, money } from '../../format'
import { isTraining, noticeMeans } from '../../phases'
import { Badge, Progress } from '../../ui/badge'
import { Explained, Money } from '../../ui/number'
import { Ago, At, useNow } from '../../ui/time'
import { Actions } from './actions'
import { Formula } from './cost'

interface HeadProps {
  job: Job
  bill: Bill | null
  events: JobEvent[]
  series: SeriesPage | null
  live: boolean
}

export function Head({ job, bill, events, series, live }: HeadProps) {
  const tags = Object.entries(job.tags)
  return (
    <div className="head">
      <p className="crumbs"><Link to="/">Fleet</Link> / <span className="id">{job.id}</span></p>
      <div className="row spread">
        <h1>{job.name}</h1>
        <Actions job={job} />
      </div>
      <div className="sentence" role="group" aria-label="State">
        <Badge state={job.state} notice={job.notice} /> · <Sentence job={job} bill={bill} />
      </div>
      {job.notice && <Notice notice={job.notice} />}
      {job.detail && <p className="detail">{job.detail}</p>}
      {job.warning && <p className="note warn">⚠ {job.warning}</p>}
      {job.trouble && <p className="note warn">⚠ The last status check failed: {job.trouble}</p>}
      <Details job={job} bill={bill} events={events} series={series} live={live} />
      <div className="row facts">
        <span>project <strong>{job.project}</strong></span>
        <span>{job.owner ? <>owner <strong>{job.owner}</strong></> : 'submitted by the service owner'}</span>
        {job.sweep && <span>of <Link to={`/sweeps/${job.sweep}`}>sweep {job.sweep}</Link></span>}
        <span>submitted <Ago at={job.submitted_at} /></span>
        {job.last_checkpoint_at && <span>durable step {count(job.last_checkpoint_step ?? 0)}, checkpoint <Ago at={job.last_checkpoint_at} /></span>}
        {tags.map(([name, value]) => <Link key={name} className="tag" to={`/?${new URLSearchParams({ tagged: `${name}=${value}` })}`} title="All jobs with this tag">{name}={value}</Link>)}
        <a href={`/v1/jobs/${job.id}/bundle`} download={`holdfast-${job.id}.zip`} title="Job file, tasks, manifest, events, bill, prices, checkpoints and timeline in one zip">Evidence as zip</a>
      </div>
    </div>
  )
}

/** Progress, speed and resources. A value that is unknown or cannot be computed has no entry. */
function Details({ job, bill, events, series, live }: HeadProps) {
  const now = useNow(5_000)
  const attempt = bill?.attempts.at(-1)
  const spec = events[0]?.body.spec as { run?: string } | undefined
  const rate = isTraining(job.state) ? stepRate(attempt) : null
  const run_ms = runTimeMs(bill?.attempts ?? [])
  const command = spec?.run?.trim()
  return (
    <dl className="details">
      <Detail name="Progress"><Progress step={job.step} total={job.total_steps} /></Detail>
      {run_ms > 0 && (
        <Detail name="Run time" by={<Formula text="run time = time with nodes, all attempts">{[`${duration(run_ms)} in ${many(bill?.attempts.length ?? 0, 'attempt')}`]}</Formula>}>{duration(run_ms)}</Detail>
      )}
      {job.rates ? <Speed rates={job.rates} /> : rate !== null && (
        <Detail name="Speed" by={<Formula text="speed = steps ÷ time from the first to the last step, newest attempt">{[`attempt ${attempt?.attempt}: steps ${count(attempt?.first_step ?? 0)} to ${count(attempt?.last_step ?? 0)}`]}</Formula>}>
          {measured(rate)} steps/s
        </Detail>
      )}
      {isTraining(job.state) && !job.rates?.tokens_per_s && <Tokens job={job.id} series={series} live={live} />}
      <Eta job={job} now={now} />
      <Detail name="Nodes">{job.min_nodes ? `${job.min_nodes}-${job.nodes}` : job.nodes} × {attempt?.instance_type ?? (job.gpus > 0 ? `node, ${many(job.gpus, 'GPU')} in total` : 'node')}</Detail>
      {command && <Detail name="Command"><code className="command" title={command}>{command.split('\n')[0]}{command.includes('\n') && ' …'}</code></Detail>}
    </dl>
  )
}

function Detail({ name, by, children }: { name: string; by?: ReactNode; children: ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{by ? <Explained by={by}>{children}</Explained> : children}</dd>
    </div>
  )
}

/** Rates while training, as the worker measures them. */
function Speed({ rates }: { rates: Rates }) {
  const parts = stepParts(rates)
  const step_ms = 1000 / rates.steps_per_s
  return (
    <>
      <Detail name="Speed" by={
        <Formula text="speed = completed steps ÷ time in the training loop without stalls, last ten seconds">
          {rates.stalled ? [`stalled for ${Math.round(100 * rates.stalled)} % of that time`] : []}
        </Formula>
      }>
        {measured(rates.steps_per_s)} steps/s
      </Detail>
      {(rates.tokens_per_s ?? rates.samples_per_s) && (
        <Detail name="Throughput" by="counted in the batches of the first rank, times the number of ranks">
          {rates.samples_per_s && <>{measured(rates.samples_per_s)} samples/s</>}
          {rates.samples_per_s && rates.tokens_per_s && ' · '}
          {rates.tokens_per_s && <>{measured(rates.tokens_per_s)} tokens/s</>}
        </Detail>
      )}
      {typeof rates.mfu === 'number' && <Detail name="MFU" by="6 operations for each parameter and token ÷ peak of the GPU">{Math.round(100 * rates.mfu)} %</Detail>}
      {parts.length > 0 && (
        <Detail name="Step" by={<Formula text="parts of a step, without stalls">{parts.map(([name, part_s]) => `${name} ${milliseconds(1000 * part_s)}`)}</Formula>}>
          {milliseconds(step_ms)}
          <small> ({parts.filter(([, part_s]) => part_s > 0).map(([name, part_s]) => `${name} ${Math.round((100_000 * part_s) / step_ms)} %`).join(', ')})</small>
        </Detail>
      )}
    </>
  )
}

const milliseconds = (ms: number): string => (ms < 10_000 ? `${measured(ms)} ms` : duration(ms))

/** The expected end with its band; while a job trains, why there is none. */
function Eta({ job, now }: { job: Job; now: number }) {
  const left = endsIn(job.eta, now)
  if (!left || !job.eta?.p50) return isTraining(job.state) && job.eta?.reason ? <Detail name="ETA" by={job.eta.reason}>unknown</Detail> : null
  const more = job.eta.interruptions ? [`${job.eta.interruptions.toFixed(1)} more interruptions expected`] : []
  return (
    <Detail name="ETA" by={
      <Formula text={job.eta.is_planned ? 'the forecast of the newest plan' : 'remaining steps × training time of a step, and the interruptions still to come'}>
        {[`ends within ${duration(left.low)} to ${duration(left.high)} with a probability of 80 %`, ...more]}
      </Formula>
    }>
      {duration(left.middle)} <small>({duration(left.low)} to {duration(left.high)}; <At at={job.eta.p50} brief />)</small>
    </Detail>
  )
}

/** The newest logged token throughput; nothing for scripts that log none. */
function Tokens({ job, series, live }: { job: string; series: SeriesPage | null; live: boolean }) {
  const name = tokenSeries((series?.series ?? []).map((one) => one.name))
  const { data } = useSeries(job, name ? [name] : [], live)
  const value = newestValue(data?.series[0]?.buckets ?? [])
  return name && value !== null ? <Detail name="Throughput" by={`newest value of the metric ${name}`}>{measured(value)} tokens/s</Detail> : null
}

/** A preemption that is in progress. */
function Notice({ notice }: { notice: NonNullable<Job['notice']> }) {
  const now = useNow()
  const left_ms = notice.left_s === null ? 0 : Date.parse(notice.at) + 1000 * notice.left_s - now
  return (
    <p className="note warn" role="status">
      ⚠ Termination notice <Ago at={notice.at} /> at step {count(notice.step)}: {noticeMeans(notice.phase)}.
      {left_ms > 0 && ` Nodes terminate in ${duration(left_ms)}.`}
    </p>
  )
}

/** The job's history in one sentence. */
function Sentence({ job, bill }: { job: Job; bill: Bill | null }) {
  const total = job.total_steps === null ? '' : ` of ${count(job.total_steps)}`
  const soft = { simulated: job.simulated, estimate: job.is_price_estimate }
  const is_calm = !job.notice && job.preemptions + job.failures === 0 && job.lost_steps === 0
  const lost = bill?.losses.reduce((sum, loss) => ({ ms: sum.ms + loss.lost_ms, micros: sum.micros + loss.lost_micros }), { ms: 0, micros: 0 })
  return (
    <>
      {job.attempt > 0 && <>attempt {job.attempt}{job.zone && <> in {job.zone}</>}, </>}
      reported step {count(job.step)}{total};{' '}
      {is_calm ? (
        'no preemptions or failures so far'
      ) : (
        <>
          {many(job.preemptions, 'preemption')}{job.drills > 0 && <> ({many(job.drills, 'drill')})</>} and {job.failures} of {many(job.max_failures, 'allowed failure')} so far; lost {many(job.lost_steps, 'step')}
          {lost && lost.ms > 0 && <> and {duration(lost.ms)} for <Money micros={lost.micros} {...soft} /></>}
        </>
      )}
      ; paid{' '}
      <Money micros={job.paid_micros} {...soft} />
      {job.limits.max_cost_usd && <> of {money(1e6 * Number(job.limits.max_cost_usd))}</>}.
    </>
  )
}
