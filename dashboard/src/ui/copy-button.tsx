// A button that copies a text to the clipboard and shows it.

import { useId, useRef, useState } from 'react'

export function CopyButton({ title, text }: { title: string; text: string }) {
  const dialog = useRef<HTMLDialogElement>(null)
  const id = useId()
  const [is_copied, setIsCopied] = useState(false)
  const copy = async () => {
    try {
      // Browsers give no clipboard to pages served over http from another machine.
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
        <div className="dialog-body">
          <h2 id={id}>{title}</h2>
          <p role="status" className="note">{is_copied ? '✓ Copied to the clipboard.' : 'The clipboard is not available; select the text and copy it.'}</p>
          <pre className="log" tabIndex={0} role="region" aria-label="Text">{text}</pre>
          <p className="row end"><button type="button" onClick={() => dialog.current?.close()}>Back</button></p>
        </div>
      </dialog>
    </span>
  )
}
