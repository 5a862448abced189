// A text that is taken along: a button that puts it on the clipboard, and shows it where there is none.

import { useId, useRef, useState } from 'react'

export function Copied({ title, text }: { title: string; text: string }) {
  const dialog = useRef<HTMLDialogElement>(null)
  const id = useId()
  const [is_copied, setIsCopied] = useState(false)
  const copy = async () => {
    try {
      // Pages that came over http from another machine have no clipboard.
      await navigator.clipboard.writeText(text)
      setIsCopied(true)
    } catch {
      setIsCopied(false)
    }
    dialog.current?.showModal()
  }
  return (
    <span className="action">
      <button type="button" onClick={() => void copy()}>{title}</button>
      <dialog ref={dialog} aria-labelledby={id} className="wide">
        <div className="asked">
          <h2 id={id}>{title}</h2>
          <p role="status" className="note">{is_copied ? '✓ It is on the clipboard.' : 'This page has no clipboard; mark the text and copy it.'}</p>
          <pre className="log" tabIndex={0} role="region" aria-label="Text">{text}</pre>
          <p className="row end"><button type="button" onClick={() => dialog.current?.close()}>Back</button></p>
        </div>
      </dialog>
    </span>
  )
}
