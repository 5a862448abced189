// How much warning there was, and how often work was saved in it.

import type { Query } from '../../api/queries'
import type { Notices } from '../../api/types'
import { Bars } from '../../charts/bars'
import { barsOf } from '../../charts/market'
import { Panel } from '../../ui/panel'

export function NoticePanel({ query }: { query: Query<Notices> }) {
  return (
    <Panel title="Notices" query={query} height="middle" aside={<NoticeKey />}
      empty={(told) => (barsOf(told).every((bar) => bar.whole === 0) ? <p>Nothing was taken.</p> : null)}>
      {(told) => <Bars bars={barsOf(told)} label={`Losses by the warning before them: ${barsOf(told).map((bar) => bar.title).join('; ')}`} />}
    </Panel>
  )
}

function NoticeKey() {
  return (
    <ul className="key">
      <li><svg width="14" height="12" aria-hidden="true"><rect className="bar-part" width="14" height="12" /></svg>Work saved in time</li>
      <li><svg width="14" height="12" aria-hidden="true"><rect className="bar-rest" width="14" height="12" /></svg>Not</li>
    </ul>
  )
}
