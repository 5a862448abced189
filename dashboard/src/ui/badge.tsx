// How a job stands in few words: its state as a mark, a colour and a word; where it is; how far it has come.

import { many } from '../format'
import { STATES, stateWords } from '../vocabulary'

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

/** A zone by its own name, which says the region, too; the cloud before it is in the title. */
export function Place({ zone, nodes }: { zone: string; nodes: number }) {
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
