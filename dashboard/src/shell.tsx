// What every page has around it: where one can go, whether what is shown is live, and how it is shown.

import { useMutation, useQueryClient } from '@tanstack/react-query'
import type { ReactNode } from 'react'
import { Link, NavLink } from 'react-router'
import { holdSession, Refused, send, Unreachable } from './api/client'
import { useSession, useWho } from './api/queries'
import { Hatches } from './charts/swimlane'
import { LiveProvider, useLive } from './live/live'
import { LoginPage } from './pages/login'
import { Palette } from './palette'
import { usePreferences, type Theme } from './preferences'
import { Ago } from './ui/time'
import { Trouble } from './ui/panel'

const THEMES: Record<Theme, string> = { auto: '◐ Auto', light: '○ Light', dark: '● Dark' }
const NEXT: Record<Theme, Theme> = { auto: 'light', light: 'dark', dark: 'auto' }

export function Shell({ children }: { children: ReactNode }) {
  const who = useWho()
  const session = useSession(who.data != null && who.data.token_id !== null)
  holdSession(session.data ?? null)
  if (who.error instanceof Refused && who.error.status === 401)
    return <Frame><LoginPage why={who.error.message} /></Frame>
  if (who.error && !who.data) return <Frame><Trouble error={who.error} retry={() => void who.refetch()} /></Frame>
  if (!who.data || session.isLoading) return <Frame><div className="skeleton tall" role="status"><span className="unseen">Loading</span></div></Frame>
  return (
    <LiveProvider>
      <Frame user={who.data.user} demo={who.data.demo_seed} canLeave={session.data != null} live>
        {children}
      </Frame>
    </LiveProvider>
  )
}

interface FrameProps {
  user?: string | null
  /** The seed of a demonstration; null where all is real. */
  demo?: number | null
  canLeave?: boolean
  live?: boolean
  children: ReactNode
}

function Frame({ user, demo = null, canLeave, live, children }: FrameProps) {
  const { theme, setTheme, clock, setClock } = usePreferences()
  const client = useQueryClient()
  const leave = useMutation({
    mutationFn: () => send('DELETE', '/v1/session').catch(unlessOver),
    onSuccess: () => {
      // A job file that was not submitted is for nobody who logs in next.
      sessionStorage.clear()
      return client.resetQueries()
    },
  })
  return (
    <>
      <a className="skip" href="#main">Skip to the page</a>
      <Hatches />
      <header className="bar">
        <NavLink to="/" className="brand">Holdfast</NavLink>
        <nav aria-label="Pages">
          <NavLink to="/" end>Fleet</NavLink>
          <NavLink to="/preemptions">Preemptions</NavLink>
          <NavLink to="/prices">Prices</NavLink>
          <NavLink to="/submit">Submit</NavLink>
          <NavLink to="/team">Team</NavLink>
        </nav>
        <div className="row end">
          {live && <Palette />}
          {live && <Liveness />}
          {user && <span className="quiet">{user}</span>}
          <button type="button" className="quiet" onClick={() => setClock(clock === 'utc' ? 'local' : 'utc')} aria-label={`Times are ${clock === 'utc' ? 'UTC' : 'local'}; switch`}>
            {clock === 'utc' ? 'UTC' : 'Local'}
          </button>
          <button type="button" className="quiet" onClick={() => setTheme(NEXT[theme])} aria-label={`Theme is ${theme}; switch`}>
            {THEMES[theme]}
          </button>
          {canLeave && <button type="button" className="quiet" disabled={leave.isPending} onClick={() => leave.mutate()}>Log out</button>}
        </div>
      </header>
      {demo !== null && (
        <aside className="banner demo" aria-label="Demonstration">
          <strong>Demonstration</strong> Jobs, people and prices are made up (seed {demo}); nobody pays.
        </aside>
      )}
      {leave.error && <p className="banner" role="alert">✕ You {leave.error instanceof Unreachable && leave.error.loss === 'unknown' ? 'may still be' : 'are still'} logged in; log out again. {leave.error.message}</p>}
      {live && <Staleness />}
      {live && <Toast />}
      <main id="main" tabIndex={-1}>{children}</main>
    </>
  )
}

/** A session that there is not any more has been left. */
function unlessOver(error: unknown): null {
  if (error instanceof Refused && error.status === 401) return null
  throw error
}

function Liveness() {
  const { liveness, spoken } = useLive()
  const words = { live: '● live', connecting: '◌ connecting', stale: '✕ not live' }[liveness.is]
  return (
    <>
      <span className={`liveness ${liveness.is}`}>{words}</span>
      <span className="unseen" aria-live="polite">{spoken}</span>
    </>
  )
}

/** A termination notice that came a moment ago, on whatever page. */
function Toast() {
  const { noticed } = useLive()
  if (noticed === null) return null
  return <p className="banner toast" role="alert">⚠ Termination notice for job <Link to={`/jobs/${noticed}`}>{noticed}</Link></p>
}

function Staleness() {
  const { liveness } = useLive()
  if (liveness.is !== 'stale') return null
  return (
    <p className="banner" role="status">
      ⚠ Not live since <Ago at={new Date(liveness.since).toISOString()} />: {liveness.why}. Trying again; jobs go on meanwhile.
    </p>
  )
}
