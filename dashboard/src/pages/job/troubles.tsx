// What the trouble of a job looks like: guesses, each with what to do and from what it follows.

import { useHints } from '../../api/queries'
import type { Hint, Job } from '../../api/types'

type Evidence = Hint['evidence'][number]

/** Nothing where nothing is known to be wrong: a guess that is late or cannot be had is not missed. */
export function Troubles({ job, live }: { job: Job; live: boolean }) {
  const { data } = useHints(job.id, live, job.state === 'failed')
  return data?.hints.map((hint) => <Guess key={hint.trouble} hint={hint} />)
}

const Guess = ({ hint }: { hint: Hint }) => (
  <div className="hint" role="note">
    <p><strong>⚠ {hint.looks}</strong> {hint.remedy}</p>
    {hint.evidence.map((one, at) => (
      <p key={at}><small>{whereOf(one)}:</small> <code>{one.text}</code></p>
    ))}
  </div>
)

function whereOf({ attempt, node, rank }: Evidence): string {
  const who = rank !== null ? `, rank ${rank}` : node !== null ? `, node ${node}` : ''
  return `attempt ${attempt}${who}`
}
