// Upload of a job's code: a folder or a zip from this computer.

import { useEffect, useId, useRef, useState, type DragEvent } from 'react'
import { ResponseError } from '../api/client'
import { bytes, many } from '../format'
import { Section, ErrorMessage } from '../ui/panel'
import { chosen, dropped, Unusable, unzipped, type Folder } from './folder'
import { upload, type Progress } from './upload'

/** Largest number of excluded paths on display. */
const MOST_LISTED = 50

/** An uploaded folder. */
export interface Code {
  id: string
  name: string
  files: number
  size_bytes: number
  left_out: string[]
}

interface CodeProps {
  code: Code | null
  change: (code: Code | null) => void
}

export function CodeSection({ code, change }: CodeProps) {
  const { progress, error, begin, cancel, retry } = useUpload(change)
  const [is_over, setIsOver] = useState(false)
  const drop = (event: DragEvent) => {
    event.preventDefault()
    setIsOver(false)
    begin(folderOf(event.dataTransfer))
  }
  const over = (event: DragEvent) => {
    event.preventDefault()
    setIsOver(true)
  }
  return (
    <Section title="Code">
      <div className={is_over ? 'drop over' : 'drop'} onDragOver={over} onDragLeave={() => setIsOver(false)} onDrop={drop}>
        <p>Drop a folder or a zip here.</p>
        <div className="row">
          <Chooser title="Choose folder" is_folder is_off={progress !== null} choose={(files) => begin(() => chosen(files))} />
          <Chooser title="Choose zip" is_off={progress !== null} choose={([file]) => file && begin(() => unzipped(file))} />
        </div>
        <p className="note">
          The current contents are uploaded, without <code>.git</code> and the paths in <code>.skyignore</code>, or in <code>.gitignore</code> if there is no{' '}
          <code>.skyignore</code>. Scripts that start with <code>#!</code> become executable. <code>holdfast submit</code> also keeps symbolic links and
          permissions.
        </p>
      </div>
      {error && <ErrorMessage error={error} means="Code not uploaded" {...(retry && !(error instanceof Unusable) && { retry })} />}
      {progress && <UploadProgress progress={progress} cancel={cancel} />}
      <div role="status">{code && !progress && <Uploaded code={code} />}</div>
      {code && !progress && <p><button type="button" onClick={() => change(null)}>Remove the code</button></p>}
    </Section>
  )
}

/** One upload at a time; a new one replaces it. */
function useUpload(done: (code: Code) => void) {
  const [progress, setProgress] = useState<Progress | null>(null)
  const [error, setError] = useState<Error | null>(null)
  const running = useRef<AbortController | null>(null)
  const last = useRef<(() => Promise<Folder>) | null>(null)
  // The newest handler is called, since the job file may change during the upload.
  const latest = useRef(done)
  latest.current = done
  useEffect(() => () => running.current?.abort(), [])

  const begin = (read: () => Promise<Folder>) => {
    running.current?.abort()
    const own = new AbortController()
    running.current = own
    last.current = read
    setError(null)
    setProgress({ phase: 'reading', done: 0, total: 0 })
    const finish = (act: () => void) => {
      if (own.signal.aborted) return
      setProgress(null)
      act()
    }
    send(read, own.signal, (now) => !own.signal.aborted && setProgress(now)).then(
      (code) => finish(() => latest.current(code)),
      // The service reports too much code as a conflict, whose title refers to jobs.
      (trouble: Error) => finish(() => setError(trouble instanceof ResponseError && trouble.status === 409 ? new Unusable(trouble.message) : trouble)),
    )
  }
  const cancel = () => {
    running.current?.abort()
    setProgress(null)
  }
  return { progress, error, begin, cancel, retry: last.current && (() => last.current && begin(last.current)) }
}

async function send(read: () => Promise<Folder>, signal: AbortSignal, reports: (progress: Progress) => void): Promise<Code> {
  const folder = await read()
  const id = await upload(folder, { reports, signal })
  const size_bytes = folder.found.reduce((size, { content }) => size + content.size, 0)
  return { id, name: folder.name, files: folder.found.length, size_bytes, left_out: folder.left_out }
}

/** A reader of the dropped item. Browsers provide its entries only during the event. */
function folderOf(transfer: DataTransfer): () => Promise<Folder> {
  const [item, ...more] = [...transfer.items]
  const entry = item?.webkitGetAsEntry()
  const file = item?.getAsFile()
  return async () => {
    if (entry?.isDirectory && more.length === 0) return dropped(entry as FileSystemDirectoryEntry)
    if (file && /\.zip$/i.test(file.name) && more.length === 0) return unzipped(file)
    throw new Unusable('Drop exactly one folder or zip.')
  }
}

interface ChooserProps {
  title: string
  is_folder?: boolean
  is_off: boolean
  choose: (files: File[]) => void
}

/** A button that opens the browser's file dialog. */
function Chooser({ title, is_folder = false, is_off, choose }: ChooserProps) {
  const input = useRef<HTMLInputElement>(null)
  return (
    <>
      <button type="button" disabled={is_off} onClick={() => input.current?.click()}>{title}</button>
      <input ref={input} type="file" hidden aria-label={title} {...(is_folder ? { webkitdirectory: '' } : { accept: '.zip,application/zip' })}
        onChange={({ target }) => {
          const files = [...(target.files ?? [])]
          target.value = '' // Choosing the same folder again is a change.
          if (files.length > 0) choose(files)
        }} />
    </>
  )
}

function UploadProgress({ progress: { phase, done, total }, cancel }: { progress: Progress; cancel: () => void }) {
  const id = useId()
  return (
    <div className="row">
      <label htmlFor={id}>{phase === 'reading' ? 'Reading' : 'Uploading'}</label>
      <progress id={id} value={total ? done : undefined} max={total || 1} />
      <span className="small">{bytes(done)} of {bytes(total)}</span>
      <button type="button" onClick={cancel}>Cancel</button>
    </div>
  )
}

function Uploaded({ code }: { code: Code }) {
  const listed = code.left_out.slice(0, MOST_LISTED)
  return (
    <>
      <p>✓ {code.name}: {many(code.files, 'file')}, {bytes(code.size_bytes)}, uploaded.</p>
      {listed.length > 0 && (
        <details>
          <summary>Excluded: {many(code.left_out.length, 'file or folder', 'files and folders')}</summary>
          <ul className="names">{listed.map((path) => <li key={path}><code>{path}</code></li>)}</ul>
          {code.left_out.length > listed.length && <p className="note">First {listed.length} only.</p>}
        </details>
      )}
    </>
  )
}
