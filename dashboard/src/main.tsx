import { QueryClient, QueryClientProvider } from '@tanstack/react-query'
import { StrictMode, Suspense, type ReactNode } from 'react'
import { createRoot } from 'react-dom/client'
import { BrowserRouter, Link, Route, Routes } from 'react-router'
import { Refused } from './api/client'
import { FleetPage } from './pages/fleet'
import { JobPage } from './pages/job'
import { PreferencesProvider } from './preferences'
import { Shell } from './shell'
import { late } from './ui/late'
import './style/tokens.css'
import './style/base.css'
import './style/parts.css'
import './style/charts.css'

/** Pages that are fetched when they are gone to. */
const PreemptionsPage = late(() => import('./pages/preemptions'))
const PricesPage = late(() => import('./pages/prices'))
const SubmitPage = late(() => import('./pages/submit'))
const TeamPage = late(() => import('./pages/team'))

const Later = ({ children }: { children: ReactNode }) => (
  <Suspense fallback={<div className="skeleton tall" role="status"><span className="unseen">Loading</span></div>}>{children}</Suspense>
)

const client = new QueryClient({
  defaultOptions: {
    // The service may be on this machine, which answers also where the browser has no network: nothing waits for one to come.
    queries: {
      networkMode: 'always',
      refetchOnReconnect: true,
      // A refusal stays one; what did not answer is asked once more, and then by the stream's own rhythm.
      retry: (failures, error) => !(error instanceof Refused && error.status < 500) && failures < 1,
      staleTime: 2_000,
    },
    mutations: { networkMode: 'always', retry: false },
  },
})

const place = document.getElementById('page')
if (!place) throw new Error('index.html has no place for the page')

createRoot(place).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <PreferencesProvider>
        {/* What one types and ticks is in the address; put off as transitions, it would jump back for a moment. */}
        <BrowserRouter useTransitions={false}>
          <Shell>
            <Routes>
              <Route path="/" element={<FleetPage />} />
              <Route path="/jobs/:id" element={<JobPage />} />
              <Route path="/preemptions" element={<Later><PreemptionsPage /></Later>} />
              <Route path="/prices" element={<Later><PricesPage /></Later>} />
              <Route path="/submit" element={<Later><SubmitPage /></Later>} />
              <Route path="/team" element={<Later><TeamPage /></Later>} />
              <Route path="*" element={<p>There is no such page. <Link to="/">Fleet</Link></p>} />
            </Routes>
          </Shell>
        </BrowserRouter>
      </PreferencesProvider>
    </QueryClientProvider>
  </StrictMode>,
)
