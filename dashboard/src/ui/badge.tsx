// Short forms of a job's state, placement and progress.

import { many } from '../format'
import { STATES, stateWords } from '../phases'

interface BadgeProps {
  state: string
  notice?: { phase: string } | null | undefined
}

export function Badge({ state, notice }: BadgeProps) {
  const look = notice ? { mark: '⚠', tone: 'warn' } : (STATES[state] ?? { mark: '·', tone: 'idle' })
  return (
    <span className={`badge ${look.tone}`}>
      <span aria-hidden="true">{look.mark}</span> {stateWords({ state, notice })}
    </span>
  )
}

/** A zone without its cloud and region, which are in the tooltip. */
export function Placement({ zone, nodes }: { zone: string; nodes: number }) {
  return <span title={`${zone}, ${many(nodes, 'node')}`}>{zone.split('/').at(-1)} ×{nodes}</span>
}

export function Progress({ step, total }: { step: number; total: number | null }) {
  if (total === null) return <span className="number">step {step.toLocaleString('en-US')}</span>
  const percent = Math.floor((100 * step) / Math.max(1, total))
  return (
    <span className="progress">
      <progress value={step} max={total} aria-label={`step ${step} of ${total}`} />
      <span className="number" title={`step ${step} of ${total}`}>
        {percent} %
      </span>
    </span>
  )
}
