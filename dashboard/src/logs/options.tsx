// Display options of a log, kept in the address, and its download.

import { useState } from 'react'
import { useSearchParams } from 'react-router'
import { request, withQuery } from '../api/client'
import type { LogSource } from '../api/types'
import { bytes } from '../format'

/** Bytes per request of a download: the largest piece that the service sends. */
const PIECE_BYTES = 4 * 1024 * 1024

export interface LogOptions {
  wrap: boolean
  /** Whether time stamps at the start of lines are shown. */
  times: boolean
}

export function useLogOptions(): LogOptions {
  const [params] = useSearchParams()
  return { wrap: params.get('wrap') === 'yes', times: params.get('times') !== 'no' }
}

interface OptionsProps {
  job: string
  log: LogSource
  size_bytes: number
  has_times: boolean
}

export function Options({ job, log, size_bytes, has_times }: OptionsProps) {
  const [, setParams] = useSearchParams()
  const { wrap, times } = useLogOptions()
  const put = (name: string, value: string | null) => setParams((now) => (value ? now.set(name, value) : now.delete(name), now), { replace: true })
  return (
    <span className="row">
      <label><input type="checkbox" checked={wrap} onChange={(event) => put('wrap', event.target.checked ? 'yes' : null)} /> Wrap lines</label>
      {has_times && <label><input type="checkbox" checked={times} onChange={(event) => put('times', event.target.checked ? null : 'no')} /> Time stamps</label>}
      <Download job={job} log={log} size_bytes={size_bytes} />
    </span>
  )
}

function Download({ job, log, size_bytes }: Omit<OptionsProps, 'has_times'>) {
  const [done, setDone] = useState<number | null>(null)
  const [error, setError] = useState<Error | null>(null)
  const download = async () => {
    setError(null)
    setDone(0)
    try {
      save(await read(job, log, size_bytes, setDone), nameOf(job, log))
    } catch (failure) {
      setError(failure as Error)
    } finally {
      setDone(null)
    }
  }
  return (
    <>
      <button type="button" className="quiet" disabled={done !== null} onClick={() => void download()}>
        {done === null ? 'Download' : `Downloading: ${bytes(done)} of ${bytes(size_bytes)}`}
      </button>
      {error && <small role="alert">✕ Download failed: {error.message}</small>}
    </>
  )
}

async function read(job: string, { attempt, node, rank }: LogSource, size_bytes: number, progress: (done: number) => void): Promise<Blob> {
  const pieces: Blob[] = []
  for (let offset = 0; offset < size_bytes; offset += PIECE_BYTES) {
    const limit = Math.min(PIECE_BYTES, size_bytes - offset)
    pieces.push(await (await request(withQuery(`/v1/jobs/${encodeURIComponent(job)}/logs/text`, { attempt, node, rank, offset, limit }))).blob())
    progress(offset + limit)
  }
  return new Blob(pieces, { type: 'text/plain' })
}

const nameOf = (job: string, { attempt, node, rank }: LogSource): string => `${job}-attempt-${attempt}-${rank === null ? `node-${node}` : `rank-${rank}`}.log`

function save(content: Blob, name: string): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(content)
  link.download = name
  link.click()
  URL.revokeObjectURL(link.href)
}
