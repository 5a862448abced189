// The diagnosis of a job: hints on its problem and, after a failure, the last lines of its log.

import { useQuery } from '@tanstack/react-query'
import { Link } from 'react-router'
import { request, withQuery } from '../../api/client'
import { useHints, useLogs } from '../../api/queries'
import type { Hint, Job, LogSource } from '../../api/types'
import { readable } from '../../logs/pages'
import { Section } from '../../ui/panel'

/** Bytes of the log's end that are read. A lower value cuts tracebacks; a higher value delays the page. */
const TAIL_BYTES = 8_192
const TAIL_LINES = 20

type Evidence = Hint['evidence'][number]

/** Hidden while no problem is known. Hints that cannot be read are left out. */
export function Diagnosis({ job, live }: { job: Job; live: boolean }) {
  const has_failed = job.state === 'failed'
  const { data } = useHints(job.id, live, has_failed)
  const log = useFailedLog(job, has_failed)
  const tail = useTail(job.id, log)
  const hints = data?.hints ?? []
  if (hints.length === 0 && !tail.data) return null
  return (
    <Section title="Diagnosis" className="diagnosis">
      {hints.map((hint) => <HintBox key={hint.trouble} hint={hint} />)}
      {tail.data && log && (
        <div>
          <p className="row spread">
            <span>Last lines of attempt {log.attempt}, {log.rank === null ? `node ${log.node}` : `rank ${log.rank}`}</span>
            <Link to={`?tab=logs&log=${log.attempt}.${log.node}.${log.rank ?? ''}`}>Full log</Link>
          </p>
          <pre className="log tail" tabIndex={0} role="region" aria-label="Last log lines">{tail.data}</pre>
        </div>
      )}
    </Section>
  )
}

/** The log of the newest attempt that is most likely to hold the error: rank 0, else node 0. */
function useFailedLog(job: Job, has_failed: boolean): LogSource | undefined {
  const { data } = useLogs(job.id, false, has_failed)
  const newest = (data ?? []).filter((log) => log.size_bytes > 0 && log.attempt === data?.at(-1)?.attempt)
  return newest.find((log) => log.rank === 0) ?? newest.find((log) => log.node === 0) ?? newest[0]
}

const useTail = (job: string, log: LogSource | undefined) =>
  useQuery({
    queryKey: ['job', job, 'tail', log],
    enabled: log !== undefined,
    queryFn: async ({ signal }) => {
      if (!log) return ''
      const { attempt, node, rank, size_bytes } = log
      const offset = Math.max(0, size_bytes - TAIL_BYTES)
      const path = withQuery(`/v1/jobs/${encodeURIComponent(job)}/logs/text`, { attempt, node, rank, offset, limit: TAIL_BYTES })
      const lines = (await (await request(path, { signal })).text()).replace(/\n$/, '').split('\n').map(readable)
      return lines.slice(Math.max(offset > 0 ? 1 : 0, lines.length - TAIL_LINES)).join('\n')
    },
  })

const HintBox = ({ hint }: { hint: Hint }) => (
  <div className="hint" role="note">
    <p><strong>⚠ {hint.looks}</strong> {hint.remedy}</p>
    {hint.evidence.map((one, at) => (
      <p key={at}><small>{sourceOf(one)}:</small> <code>{one.text}</code></p>
    ))}
  </div>
)

function sourceOf({ attempt, node, rank }: Evidence): string {
  const process = rank !== null ? `, rank ${rank}` : node !== null ? `, node ${node}` : ''
  return `attempt ${attempt}${process}`
}
