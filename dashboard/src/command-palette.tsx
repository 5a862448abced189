// The command palette: pages, jobs, actions on jobs and settings by keyboard; and keyboard shortcuts.

import { useEffect, useId, useRef, useState, type KeyboardEvent, type RefObject } from 'react'
import { useLocation, useMatch, useNavigate } from 'react-router'
import { useQueryClient } from '@tanstack/react-query'
import { useJobSearch } from './api/queries'
import type { Job } from './api/types'
import { ACTIONS, permission, type ActionName } from './job-actions'
import { MENU } from './pages'
import { usePreferences } from './preferences'
import { useSettled } from './ui/settled'

/** Delay between typing and the search for jobs. */
const TYPING_MS = 200
/** Longest time between the two keys of a shortcut. */
const CHORD_MS = 1_500

interface Entry {
  title: string
  more: string
  act: () => void
}

export function CommandPalette() {
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

interface SearchResult {
  entries: Entry[]
  /** Whether the search for jobs is running. */
  is_searching: boolean
  /** The error of the search. */
  error: Error | null
}

/** An action and the text after it, such as "pause llama"; no action for other text. */
function parseAction(typed: string): { action: ActionName | null; text: string } {
  const [first = '', ...rest] = typed.trimStart().split(' ')
  const action = ACTIONS.find((name) => name === first.toLowerCase()) ?? null
  return { action, text: action ? rest.join(' ') : typed }
}

const titled = (name: string): string => name.slice(0, 1).toUpperCase() + name.slice(1)

/** Actions on the job whose page is open. */
function useJobActions(): Entry[] {
  const go = useNavigate()
  const id = useMatch('/jobs/:id')?.params.id
  const job = useQueryClient().getQueryData<Job>(['job', id, 'itself'])
  if (!job) return []
  return ACTIONS.filter((name) => permission(job, name)?.allowed).map((name) => ({ title: `${titled(name)} ${job.name}`, more: 'this job', act: () => void go(`/jobs/${id}?action=${name}`) }))
}

/** Entries that match the typed text. Jobs of an earlier search are left out. */
function useEntries(typed: string): SearchResult {
  const go = useNavigate()
  const { setTheme, setClock } = usePreferences()
  const { action, text } = parseAction(typed)
  const settled = useSettled(text, TYPING_MS)
  const found = useJobSearch(settled)
  const job_actions = useJobActions()
  const is_searching = text !== settled || found.isPending
  const to = (path: string) => () => void go(path)
  const fixed: Entry[] = [
    ...MENU.map(({ title, path, key }) => ({ title, more: `g ${key}`, act: to(path) })),
    ...(['light', 'dark', 'auto'] as const).map((theme) => ({ title: `Theme: ${theme}`, more: '', act: () => setTheme(theme) })),
    { title: 'Times in UTC', more: '', act: () => setClock('utc') },
    { title: 'Times in local time', more: '', act: () => setClock('local') },
  ]
  const found_jobs = is_searching ? [] : (found.data?.jobs ?? [])
  const jobs = action
    ? found_jobs.filter((job) => permission(job, action)?.allowed).map((job) => ({ title: `${titled(action)} ${job.name}`, more: `${job.state} · ${job.id}`, act: to(`/jobs/${job.id}?action=${action}`) }))
    : found_jobs.map((job) => ({ title: job.name, more: `${job.state} · ${job.id}`, act: to(`/jobs/${job.id}`) }))
  const word = typed.trim().toLowerCase()
  const listed = [...fixed, ...job_actions].filter((entry) => entry.title.toLowerCase().includes(word))
  return { entries: [...listed, ...jobs.filter((job) => listed.every(({ title }) => title !== job.title))], is_searching, error: found.error }
}

function Choices({ close }: { close: () => void }) {
  const id = useId()
  const [typed, setTyped] = useState('')
  const [at, setAt] = useState(0)
  /** Whether Enter was pressed while the search was running. */
  const [is_pending, setIsEarly] = useState(false)
  const { entries, is_searching, error } = useEntries(typed)
  const chosen = Math.min(at, entries.length - 1)
  const run = (entry: Entry | undefined) => {
    if (!entry) return
    close()
    entry.act()
  }
  useEffect(() => {
    if (!is_pending || is_searching) return
    setIsEarly(false)
    run(entries[chosen])
  })
  const keys = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1 }
    const step = steps[event.key]
    if (event.key === 'Enter') entries[chosen] ? run(entries[chosen]) : setIsEarly(is_searching)
    if (step === undefined || entries.length === 0) return
    event.preventDefault()
    setAt((chosen + step + entries.length) % entries.length)
  }
  return (
    <>
      <input
        type="text" role="combobox" aria-label="Page, job or action" aria-expanded="true" aria-controls={id} autoFocus autoComplete="off"
        aria-activedescendant={entries[chosen] ? `${id}-${chosen}` : undefined} placeholder="Page, job, or an action such as pause NAME"
        value={typed} onKeyDown={keys}
        onChange={(event) => {
          setTyped(event.target.value)
          setAt(0)
          setIsEarly(false)
        }}
      />
      <ul role="listbox" id={id} aria-label="Results">
        {entries.map((entry, place) => (
          <li key={`${entry.title}${entry.more}`} role="option" id={`${id}-${place}`} aria-selected={place === chosen} onClick={() => run(entry)} onPointerMove={() => setAt(place)}>
            <span>{entry.title}</span> <small>{entry.more}</small>
          </li>
        ))}
      </ul>
      {entries.length === 0 && <p className="note">{is_searching ? 'Searching jobs…' : (error?.message ?? 'No results.')}</p>}
    </>
  )
}

/** Ctrl K or / opens the palette, ? the help, and g with a letter a page. Inactive in text fields. */
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
      const place = performance.now() - chord.current < CHORD_MS ? MENU.find(({ key }) => key === event.key) : undefined
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
  ['Ctrl K, or /', 'command palette: pages, jobs, actions'],
  ...MENU.map(({ title, key }) => [`g ${key}`, title]),
  ['?', 'keyboard shortcuts'],
  ['← →', 'move between tabs'],
  ['↑ ↓', 'move along a table column: formula of each value'],
  ['Esc', 'close dialog or tooltip'],
]

function Help({ dialog }: { dialog: RefObject<HTMLDialogElement | null> }) {
  return (
    <dialog ref={dialog} aria-label="Keyboard shortcuts">
      <div className="dialog-body">
        <h2>Keyboard shortcuts</h2>
        <dl className="keys">
          {KEYS.map(([keys, words]) => (
            <div key={keys}><dt><kbd>{keys}</kbd></dt><dd>{words}</dd></div>
          ))}
        </dl>
        <p className="row end"><button type="button" onClick={() => dialog.current?.close()}>Close</button></p>
      </div>
    </dialog>
  )
}
