// The layout of every page: navigation, connection state and display settings.

import { useMutation, useQueryClient } from '@tanstack/react-query'
import type { ReactNode } from 'react'
import { Link, NavLink } from 'react-router'
import { setSession, ResponseError, send, Unreachable } from './api/client'
import { useSession, useCurrentUser } from './api/queries'
import { FillPatterns } from './charts/swimlane'
import { LiveProvider, useLive } from './live/live'
import { LoginPage } from './pages/login'
import { CommandPalette } from './command-palette'
import { MENU } from './pages'
import { usePreferences, type Theme } from './preferences'
import { Ago } from './ui/time'
import { ErrorMessage } from './ui/panel'

const THEMES: Record<Theme, string> = { auto: '◐ Auto', light: '○ Light', dark: '● Dark' }
const NEXT: Record<Theme, Theme> = { auto: 'light', light: 'dark', dark: 'auto' }

export function Layout({ children }: { children: ReactNode }) {
  const who = useCurrentUser()
  const session = useSession(who.data != null && who.data.token_id !== null)
  setSession(session.data ?? null)
  if (who.error instanceof ResponseError && who.error.status === 401)
    return <PageFrame><LoginPage why={who.error.message} /></PageFrame>
  if (who.error && !who.data) return <PageFrame><ErrorMessage error={who.error} retry={() => void who.refetch()} /></PageFrame>
  if (!who.data || session.isLoading) return <PageFrame><div className="skeleton tall" role="status"><span className="visually-hidden">Loading</span></div></PageFrame>
  return (
    <LiveProvider>
      <PageFrame user={who.data.user} demo={who.data.demo_seed} canLeave={session.data != null} live>
        {children}
      </PageFrame>
    </LiveProvider>
  )
}

interface PageFrameProps {
  user?: string | null
  /** Seed of the demonstration; null outside of one. */
  demo?: number | null
  canLeave?: boolean
  live?: boolean
  children: ReactNode
}

function PageFrame({ user, demo = null, canLeave, live, children }: PageFrameProps) {
  const { theme, setTheme, clock, setClock } = usePreferences()
  const client = useQueryClient()
  const leave = useMutation({
    mutationFn: () => send('DELETE', '/v1/session').catch(unlessOver),
    onSuccess: () => {
      // The next user must not see an unsubmitted job file.
      sessionStorage.clear()
      return client.resetQueries()
    },
  })
  return (
    <>
      <a className="skip" href="#main">Skip to content</a>
      <FillPatterns />
      <header className="bar">
        <NavLink to="/" className="brand">Holdfast</NavLink>
        <nav aria-label="Pages">
          {MENU.map(({ path, title }) => <NavLink key={path} to={path} end>{title}</NavLink>)}
          <a href="/docs/">Docs</a>
        </nav>
        <div className="row end">
          {live && <CommandPalette />}
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
          <strong>Demonstration</strong> Jobs, users and prices are simulated (seed {demo}); nothing is billed.
        </aside>
      )}
      {leave.error && <p className="banner" role="alert">✕ You {leave.error instanceof Unreachable && leave.error.loss === 'unknown' ? 'may still be' : 'are still'} logged in. Log out again. {leave.error.message}</p>}
      {live && <StaleBanner />}
      {live && <NoticeToast />}
      <main id="main" tabIndex={-1}>{children}</main>
    </>
  )
}

/** Ignores a session that has already ended. */
function unlessOver(error: unknown): null {
  if (error instanceof ResponseError && error.status === 401) return null
  throw error
}

function Liveness() {
  const { liveness, announcement } = useLive()
  const words = { live: '● live', connecting: '◌ connecting', stale: '✕ disconnected' }[liveness.is]
  return (
    <>
      <span className={`liveness ${liveness.is}`}>{words}</span>
      <span className="visually-hidden" aria-live="polite">{announcement}</span>
    </>
  )
}

/** A recent termination notice, on every page. */
function NoticeToast() {
  const { noticed } = useLive()
  if (noticed === null) return null
  return <p className="banner toast" role="alert">⚠ Termination notice for job <Link to={`/jobs/${noticed}`}>{noticed}</Link></p>
}

function StaleBanner() {
  const { liveness } = useLive()
  if (liveness.is !== 'stale') return null
  return (
    <p className="banner" role="status">
      ⚠ Disconnected <Ago at={new Date(liveness.since).toISOString()} />: {liveness.why}. Reconnecting; running jobs are not affected.
    </p>
  )
}
