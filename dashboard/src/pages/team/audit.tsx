// Who did what, and whether the log of it is the one that was written.

import { useSearchParams } from 'react-router'
import { useDeeds, useVerdict } from '../../api/people'
import type { Deed, Who } from '../../api/types'
import { count } from '../../format'
import { Loaded } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { At } from '../../ui/time'
import { NotYours } from './words'

export function Audit({ who }: { who: Who }) {
  const can = who.can?.audit
  return can?.allowed ? <Deeds /> : <NotYours can={can} />
}

/** What was before and after, as words. */
function how({ before, after }: Deed): string {
  const words = (part: Record<string, unknown> | null) => Object.entries(part ?? {}).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(' ')
  return [words(before), words(after)].filter(Boolean).join(' → ')
}

const COLUMNS: Column<Deed>[] = [
  { name: 'seq', title: 'No.', numeric: true, value: (one) => one.seq, cell: (one) => one.seq },
  { name: 'at', title: 'When', value: (one) => one.at, cell: (one) => <At at={one.at} /> },
  { name: 'actor', title: 'Who', value: (one) => one.actor, cell: (one) => one.actor || <span className="quiet">nobody came in</span> },
  { name: 'address', title: 'From', value: (one) => one.address, cell: (one) => one.address ?? <span className="quiet">not told</span> },
  { name: 'action', title: 'Did', value: (one) => one.action, cell: (one) => <strong>{one.action}</strong> },
  { name: 'target', title: 'To', value: (one) => one.target, cell: (one) => one.target },
  { name: 'how', title: 'How', value: how, cell: (one) => <code className="body" title={how(one)}>{how(one)}</code> },
]

function Deeds() {
  const [words, setWords] = useSearchParams()
  const [actor, target] = [words.get('actor') ?? '', words.get('target') ?? '']
  const put = (name: string) => (value: string) => setWords((now) => (value ? now.set(name, value) : now.delete(name), now), { replace: true })
  const deeds = useDeeds(actor, target)
  return (
    <>
      <Loaded query={useVerdict()} height="short">
        {({ sound, rows, problem, broken_seq }) => (
          <p className={sound ? 'note' : 'note warn'} role="status">
            {sound ? `✓ All ${count(rows)} rows are those that were written.` : `✕ Row ${broken_seq} is not the one that was written: ${problem}.`}
          </p>
        )}
      </Loaded>
      <div className="row">
        <Only label="Only by" value={actor} put={put('actor')} />
        <Only label="Only to" value={target} put={put('target')} />
      </div>
      <Loaded query={deeds} empty={(all) => (all.length === 0 ? <p>Nothing of it was done.</p> : null)}>
        {(all) => (
          <Table name="audit" caption="Audit log" columns={COLUMNS} rows={all} keyOf={(one) => String(one.seq)}
            foot={deeds.hasNextPage && <p><button type="button" disabled={deeds.isFetchingNextPage} onClick={() => void deeds.fetchNextPage()}>Show more</button></p>} />
        )}
      </Loaded>
    </>
  )
}

function Only({ label, value, put }: { label: string; value: string; put: (value: string) => void }) {
  return (
    <label className="row">
      {label} <input key={value} defaultValue={value} onBlur={(event) => put(event.target.value.trim())} onKeyDown={(event) => event.key === 'Enter' && event.currentTarget.blur()} />
    </label>
  )
}
