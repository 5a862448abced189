// Everywhere by keyboard: a list of pages, jobs and switches that one types into, and keys for what is needed most.

import { useEffect, useId, useRef, useState, type KeyboardEvent, type RefObject } from 'react'
import { useLocation, useNavigate } from 'react-router'
import { useFound } from './api/queries'
import { usePreferences } from './preferences'

/** From the last letter until jobs are looked for. */
const TYPING_MS = 200
/** Between the two keys of a shortcut. */
const CHORD_MS = 1_500

interface Entry {
  title: string
  more: string
  act: () => void
}

/** Pages and the second key of the shortcut to each; the first is g. */
export const PLACES = [
  { title: 'Fleet', path: '/', key: 'f' },
  { title: 'Preemptions', path: '/preemptions', key: 'p' },
  { title: 'Prices', path: '/prices', key: 'c' },
  { title: 'Submit', path: '/submit', key: 's' },
  { title: 'Team', path: '/team', key: 't' },
] as const

export function Palette() {
  const dialog = useRef<HTMLDialogElement>(null)
  const help = useRef<HTMLDialogElement>(null)
  const [is_open, setIsOpen] = useState(false)
  const open = () => {
    setIsOpen(true)
    dialog.current?.showModal()
  }
  useKeys(open, () => help.current?.showModal())
  const { pathname } = useLocation()
  useEffect(() => dialog.current?.close(), [pathname])
  return (
    <>
      <button type="button" className="quiet" onClick={open} aria-keyshortcuts="Control+K">
        Go to <kbd>Ctrl K</kbd>
      </button>
      <dialog ref={dialog} className="palette" aria-label="Go to" onClose={() => setIsOpen(false)}>
        {is_open && <Choices close={() => dialog.current?.close()} />}
      </dialog>
      <Help dialog={help} />
    </>
  )
}

interface Found {
  entries: Entry[]
  /** Whether jobs are still looked for. */
  is_searching: boolean
  /** Why they were not found out. */
  error: Error | null
}

/** What can be gone to: of jobs only those that were found for the very text, and not for the one before. */
function useEntries(typed: string): Found {
  const go = useNavigate()
  const { setTheme, setClock } = usePreferences()
  const settled = useSettled(typed)
  const found = useFound(settled)
  const is_searching = typed !== settled || found.isPending
  const to = (path: string) => () => void go(path)
  const fixed: Entry[] = [
    ...PLACES.map(({ title, path, key }) => ({ title, more: `g ${key}`, act: to(path) })),
    ...(['light', 'dark', 'auto'] as const).map((theme) => ({ title: `Theme: ${theme}`, more: '', act: () => setTheme(theme) })),
    { title: 'Times in UTC', more: '', act: () => setClock('utc') },
    { title: 'Times of this machine', more: '', act: () => setClock('local') },
  ]
  const jobs = (is_searching ? [] : (found.data?.jobs ?? [])).map((job) => ({ title: job.name, more: `${job.state} · ${job.id}`, act: to(`/jobs/${job.id}`) }))
  const word = typed.trim().toLowerCase()
  return { entries: [...fixed.filter((entry) => entry.title.toLowerCase().includes(word)), ...jobs], is_searching, error: found.error }
}

function useSettled(typed: string): string {
  const [settled, setSettled] = useState('')
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(typed), TYPING_MS)
    return () => window.clearTimeout(timer)
  }, [typed])
  return settled
}

function Choices({ close }: { close: () => void }) {
  const id = useId()
  const [typed, setTyped] = useState('')
  const [at, setAt] = useState(0)
  /** Whether Enter was pressed before it was known what for. */
  const [is_early, setIsEarly] = useState(false)
  const { entries, is_searching, error } = useEntries(typed)
  const chosen = Math.min(at, entries.length - 1)
  const take = (entry: Entry | undefined) => {
    if (!entry) return
    close()
    entry.act()
  }
  useEffect(() => {
    if (!is_early || is_searching) return
    setIsEarly(false)
    take(entries[chosen])
  })
  const keys = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1 }
    const step = steps[event.key]
    if (event.key === 'Enter') entries[chosen] ? take(entries[chosen]) : setIsEarly(is_searching)
    if (step === undefined || entries.length === 0) return
    event.preventDefault()
    setAt((chosen + step + entries.length) % entries.length)
  }
  return (
    <>
      <input
        type="text" role="combobox" aria-label="Page, job or switch" aria-expanded="true" aria-controls={id} autoFocus autoComplete="off"
        aria-activedescendant={entries[chosen] ? `${id}-${chosen}` : undefined} placeholder="Page, job by name or id, switch"
        value={typed} onKeyDown={keys}
        onChange={(event) => {
          setTyped(event.target.value)
          setAt(0)
          setIsEarly(false)
        }}
      />
      <ul role="listbox" id={id} aria-label="Where to">
        {entries.map((entry, place) => (
          <li key={`${entry.title}${entry.more}`} role="option" id={`${id}-${place}`} aria-selected={place === chosen} onClick={() => take(entry)} onPointerMove={() => setAt(place)}>
            <span>{entry.title}</span> <small>{entry.more}</small>
          </li>
        ))}
      </ul>
      {entries.length === 0 && <p className="note">{is_searching ? 'Looking for jobs…' : (error?.message ?? 'Nothing is called so.')}</p>}
    </>
  )
}

/** Ctrl K or / opens the list, ? the help, and g with a letter goes to a page; not while somebody types. */
function useKeys(open: () => void, help: () => void): void {
  const go = useNavigate()
  const chord = useRef(0)
  useEffect(() => {
    const press = (event: globalThis.KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
        event.preventDefault()
        open()
        return
      }
      const { target } = event
      const is_typing = target instanceof HTMLElement && target.closest('input, textarea, select, dialog') !== null
      if (is_typing || event.ctrlKey || event.metaKey || event.altKey) return
      const place = performance.now() - chord.current < CHORD_MS ? PLACES.find(({ key }) => key === event.key) : undefined
      chord.current = event.key === 'g' ? performance.now() : 0
      if (place) void go(place.path)
      if (event.key === '?') help()
      if (event.key === '/') {
        event.preventDefault()
        open()
      }
    }
    document.addEventListener('keydown', press)
    return () => document.removeEventListener('keydown', press)
  })
}

const KEYS = [
  ['Ctrl K, or /', 'go to a page or job'],
  ...PLACES.map(({ title, key }) => [`g ${key}`, title]),
  ['?', 'these keys'],
  ['← →', 'between tabs'],
  ['↑ ↓', 'along a column, from its heading: how each figure came about'],
  ['Esc', 'close what is open'],
]

function Help({ dialog }: { dialog: RefObject<HTMLDialogElement | null> }) {
  return (
    <dialog ref={dialog} aria-label="Keys">
      <div className="asked">
        <h2>Keys</h2>
        <dl className="keys">
          {KEYS.map(([keys, words]) => (
            <div key={keys}><dt><kbd>{keys}</kbd></dt><dd>{words}</dd></div>
          ))}
        </dl>
        <p className="row end"><button type="button" onClick={() => dialog.current?.close()}>Back</button></p>
      </div>
    </dialog>
  )
}
