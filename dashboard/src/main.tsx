import { QueryClient, QueryClientProvider } from '@tanstack/react-query'
import { StrictMode, Suspense, type ReactNode } from 'react'
import { createRoot } from 'react-dom/client'
import { BrowserRouter, Link, Route, Routes } from 'react-router'
import { ResponseError } from './api/client'
import { PAGES, type PagePath } from './pages'
import { FleetPage } from './pages/fleet'
import { JobPage } from './pages/job'
import { PreferencesProvider } from './preferences'
import { Layout } from './layout'
import { lazyComponent } from './ui/lazy'
import './style/tokens.css'
import './style/base.css'
import './style/parts.css'
import './style/charts.css'

/** Pages of which the code is fetched on the first visit. */
const PreemptionsPage = lazyComponent(() => import('./pages/preemptions'))
const PricesPage = lazyComponent(() => import('./pages/prices'))
const QueuePage = lazyComponent(() => import('./pages/queue'))
const SweepPage = lazyComponent(() => import('./pages/sweeps/comparison'))
const SweepsPage = lazyComponent(() => import('./pages/sweeps'))
const SubmitPage = lazyComponent(() => import('./pages/submit'))
const TeamPage = lazyComponent(() => import('./pages/team'))

const Fetched = ({ children }: { children: ReactNode }) => (
  <Suspense fallback={<div className="skeleton tall" role="status"><span className="visually-hidden">Loading</span></div>}>{children}</Suspense>
)

const ELEMENTS: Record<PagePath, ReactNode> = {
  '/': <FleetPage />,
  '/jobs/:id': <JobPage />,
  '/sweeps': <Fetched><SweepsPage /></Fetched>,
  '/sweeps/:sweep_id': <Fetched><SweepPage /></Fetched>,
  '/queue': <Fetched><QueuePage /></Fetched>,
  '/preemptions': <Fetched><PreemptionsPage /></Fetched>,
  '/prices': <Fetched><PricesPage /></Fetched>,
  '/submit': <Fetched><SubmitPage /></Fetched>,
  '/team': <Fetched><TeamPage /></Fetched>,
}

const client = new QueryClient({
  defaultOptions: {
    // The service may run on this machine and respond while the browser is offline: requests do not wait for a network.
    queries: {
      networkMode: 'always',
      refetchOnReconnect: true,
      // Client errors are not retried. Other failures are retried once, then with each reconnect of the event stream.
      retry: (failures, error) => !(error instanceof ResponseError && error.status < 500) && failures < 1,
      staleTime: 2_000,
    },
    mutations: { networkMode: 'always', retry: false },
  },
})

const place = document.getElementById('page')
if (!place) throw new Error('index.html has no #page element')

createRoot(place).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <PreferencesProvider>
        {/* Form input is kept in the address. As transitions, updates would show the previous value for a moment. */}
        <BrowserRouter useTransitions={false}>
          <Layout>
            <Routes>
              {PAGES.map(({ path }) => <Route key={path} path={path} element={ELEMENTS[path]} />)}
              <Route path="*" element={<p>Page not found. <Link to="/">Fleet</Link></p>} />
            </Routes>
          </Layout>
        </BrowserRouter>
      </PreferencesProvider>
    </QueryClientProvider>
  </StrictMode>,
)
