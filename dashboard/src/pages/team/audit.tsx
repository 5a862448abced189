// The audit log and its verification.

import { useSearchParams } from 'react-router'
import { useAuditEntries, useAuditVerification } from '../../api/people'
import type { AuditEntry, CurrentUser } from '../../api/types'
import { count } from '../../format'
import { Loaded } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { At } from '../../ui/time'
import { NotPermitted } from './shared'

export function Audit({ who }: { who: CurrentUser }) {
  const can = who.can?.audit
  return can?.allowed ? <AuditEntries /> : <NotPermitted can={can} />
}

/** The changed values, before and after. */
function how({ before, after }: AuditEntry): string {
  const words = (part: Record<string, unknown> | null) => Object.entries(part ?? {}).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(' ')
  return [words(before), words(after)].filter(Boolean).join(' → ')
}

const COLUMNS: Column<AuditEntry>[] = [
  { name: 'seq', title: 'No.', numeric: true, value: (one) => one.seq, cell: (one) => one.seq },
  { name: 'at', title: 'When', value: (one) => one.at, cell: (one) => <At at={one.at} /> },
  { name: 'actor', title: 'Actor', value: (one) => one.actor, cell: (one) => one.actor || <span className="quiet">not authenticated</span> },
  { name: 'address', title: 'Address', value: (one) => one.address, cell: (one) => one.address ?? <span className="quiet">unknown</span> },
  { name: 'action', title: 'Action', value: (one) => one.action, cell: (one) => <strong>{one.action}</strong> },
  { name: 'target', title: 'Target', value: (one) => one.target, cell: (one) => one.target },
  { name: 'how', title: 'Change', value: how, cell: (one) => <code className="body" title={how(one)}>{how(one)}</code> },
]

function AuditEntries() {
  const [params, setParams] = useSearchParams()
  const [actor, target] = [params.get('actor') ?? '', params.get('target') ?? '']
  const put = (name: string) => (value: string) => setParams((now) => (value ? now.set(name, value) : now.delete(name), now), { replace: true })
  const entries = useAuditEntries(actor, target)
  return (
    <>
      <Loaded query={useAuditVerification()} height="short">
        {({ sound, rows, problem, broken_seq }) => (
          <p className={sound ? 'note' : 'note warn'} role="status">
            {sound ? `✓ Verified: all ${count(rows)} entries are unchanged.` : `✕ Entry ${broken_seq} was changed: ${problem}.`}
          </p>
        )}
      </Loaded>
      <div className="row">
        <Only label="Actor" value={actor} put={put('actor')} />
        <Only label="Target" value={target} put={put('target')} />
      </div>
      <Loaded query={entries} empty={(all) => (all.length === 0 ? <p>No entries match.</p> : null)}>
        {(all) => (
          <Table name="audit" caption="Audit log" columns={COLUMNS} rows={all} keyOf={(one) => String(one.seq)}
            foot={entries.hasNextPage && <p><button type="button" disabled={entries.isFetchingNextPage} onClick={() => void entries.fetchNextPage()}>Show more</button></p>} />
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
