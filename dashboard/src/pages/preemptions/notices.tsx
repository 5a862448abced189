// Preemptions by the length of their notice, and how many had a checkpoint within it.

import type { Query } from '../../api/queries'
import type { Notices } from '../../api/types'
import { Bars } from '../../charts/bars'
import { barsOf } from '../../charts/price-series'
import { Panel } from '../../ui/panel'

export function NoticePanel({ query }: { query: Query<Notices> }) {
  return (
    <Panel title="Termination notices" query={query} height="middle" aside={<NoticeLegend />}
      empty={(notices) => (barsOf(notices).every((bar) => bar.whole === 0) ? <p>No preemptions.</p> : null)}>
      {(notices) => <Bars bars={barsOf(notices)} label={`Preemptions by length of notice: ${barsOf(notices).map((bar) => bar.title).join('; ')}`} />}
    </Panel>
  )
}

export function NoticeLegend() {
  return (
    <ul className="key">
      <li><svg width="14" height="12" aria-hidden="true"><rect className="bar-part" width="14" height="12" /></svg>Checkpointed before preemption</li>
      <li><svg width="14" height="12" aria-hidden="true"><rect className="bar-rest" width="14" height="12" /></svg>Not checkpointed</li>
    </ul>
  )
}
