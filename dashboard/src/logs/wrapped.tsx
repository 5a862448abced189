// A log with wrapped lines: one part of it at a time, since wrapped lines have no fixed height.

import { useEffect, useLayoutEffect, useRef, useState } from 'react'
import { bytes } from '../format'
import { ErrorMessage } from '../ui/panel'
import { Options, useLogOptions } from './options'
import { hasTime, pageOf, pagesOf, withoutTime } from './pages'
import { usePages, useSize, type LogProps } from './use-log'

/** Largest number of pages on display. A lower value needs more clicks; a higher value slows the browser down. */
const MOST_PAGES = 10

export function WrappedLog({ job, log, follows, at }: LogProps) {
  const box = useRef<HTMLPreElement>(null)
  const size_bytes = useSize(job, log, follows)
  const pages = usePages(job, log, size_bytes)
  const { times } = useLogOptions()
  const [earlier, setEarlier] = useState(0)
  const last = Math.max(0, pagesOf(size_bytes) - 1)
  const to = at === null ? last : Math.min(last, pageOf(at))
  const from = Math.max(0, to - earlier)
  useEffect(() => {
    if (size_bytes > 0) pages.want(Array.from({ length: to - from + 1 }, (_, n) => from + n))
  })
  const lines = Array.from({ length: to - from + 1 }, (_, n) => pages.loaded.get(from + n) ?? []).flat()
  const match = at === null ? undefined : lines.findLast((line) => line.offset <= at)
  useLayoutEffect(() => {
    if (!box.current || earlier > 0) return
    if (at === null) box.current.scrollTop = box.current.scrollHeight
    else box.current.querySelector('.match')?.scrollIntoView({ block: 'center' })
  }, [lines.length, at, earlier])
  if (size_bytes === 0) return <p className="empty">No output yet.</p>
  return (
    <>
      {pages.error && <ErrorMessage error={pages.error} retry={pages.again} />}
      {from > 0 && (
        <p><button type="button" disabled={earlier + 1 >= MOST_PAGES} onClick={() => setEarlier(earlier + 1)}>Show earlier lines</button></p>
      )}
      <pre ref={box} className="log wrapped" tabIndex={0} role="region" aria-label="Log">
        {lines.map((line) => <span key={line.offset} className={line === match ? 'line match' : 'line'}>{times ? line.text : withoutTime(line.text)}{'\n'}</span>)}
      </pre>
      <div className="row spread note">
        <span>{bytes(size_bytes)}</span>
        <Options job={job} log={log} size_bytes={size_bytes} has_times={lines.some((line) => hasTime(line.text))} />
      </div>
    </>
  )
}
