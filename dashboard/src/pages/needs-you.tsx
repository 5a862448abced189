// Jobs that need attention, with the action that each needs. Dismissed ones stay hidden until their reason changes.

import { useState } from 'react'
import { Link, useSearchParams } from 'react-router'
import type { Job } from '../api/types'
import { Badge } from '../ui/badge'
import { Section } from '../ui/panel'
import { Ago } from '../ui/time'

const DISMISSED = 'holdfast.dismissed'
/** Dismissed entries that are kept. A lower value forgets old ones sooner; a higher value uses more storage. */
const MOST_DISMISSED = 500
/** Entries that are shown at first. */
const FIRST = 5

export function NeedsYou({ jobs }: { jobs: Job[] }) {
  const [params] = useSearchParams()
  const [dismissed, setDismissed] = useState(read)
  const needing = jobs.filter((job) => reasonOf(job) !== null)
  const all = needing.filter((job) => !dismissed.includes(keyOf(job)))
  const hidden = needing.length - all.length
  if (needing.length === 0) return null
  const keep = (keys: string[]) => {
    localStorage.setItem(DISMISSED, JSON.stringify(keys))
    setDismissed(keys)
  }
  const restore = <button type="button" className="quiet" onClick={() => keep([])}>Show {hidden} dismissed</button>
  if (all.length === 0) return <p className="row end">{restore}</p>
  const shown = params.get('needs') === 'all' ? all : all.slice(0, FIRST)
  const whole = new URLSearchParams(params)
  whole.set('needs', 'all')
  return (
    <Section title={`Needs you (${all.length})`} className="needs-you" aside={hidden > 0 && restore}>
      <ul>
        {shown.map((job) => (
          <li key={job.id}>
            <span>
              <Badge state={job.state} notice={job.notice} /> <Link to={`/jobs/${job.id}`}>{job.name}</Link> <span>{reasonOf(job)}</span>{' '}
              <small><Ago at={job.ended_at ?? job.updated_at} /></small>
            </span>
            <span className="row">
              <Next job={job} />
              <button type="button" className="quiet" aria-label={`Dismiss ${job.name}`} onClick={() => keep([keyOf(job), ...dismissed].slice(0, MOST_DISMISSED))}>Dismiss</button>
            </span>
          </li>
        ))}
      </ul>
      {all.length > shown.length && <p><Link to={`?${whole}`}>All {all.length}</Link></p>}
    </Section>
  )
}

/** The most useful allowed action; it opens its dialog on the job page. */
function Next({ job }: { job: Job }) {
  const action = (['resume', 'retry', 'limits'] as const).find((name) => job.can[name]?.allowed)
  const title = { resume: 'Resume', retry: 'Retry', limits: 'Limits' }
  if (!action) return <Link className="button" to={`/jobs/${job.id}`} aria-label={`Open ${job.name}`}>Open</Link>
  return <Link className="button" to={`/jobs/${job.id}?action=${action}`} aria-label={`${title[action]} ${job.name}`}>{title[action]}</Link>
}

function read(): string[] {
  const kept: unknown = JSON.parse(localStorage.getItem(DISMISSED) ?? '[]')
  return Array.isArray(kept) ? kept.map(String) : []
}

const keyOf = (job: Job): string => `${job.id} ${job.state} ${reasonOf(job)}`

/** Why a job needs attention; null if it does not. */
function reasonOf(job: Job): string | null {
  if (job.warning) return `⚠ ${job.warning}`
  if (job.state === 'failed' || job.state === 'paused') return job.detail || null
  return job.trouble ? `⚠ ${job.trouble}` : null
}
