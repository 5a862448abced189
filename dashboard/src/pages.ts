// The pages of the dashboard. The service has the same list in `api/auth/route_policy.py`, and a test compares them.

interface Page {
  path: string
  /** As in the navigation and the command palette; null for pages that only links lead to. */
  title: string | null
  /** Second key of the shortcut; the first is g. */
  key: string | null
}

export const PAGES = [
  { path: '/', title: 'Fleet', key: 'f' },
  { path: '/jobs/:id', title: null, key: null },
  { path: '/sweeps', title: 'Sweeps', key: 'w' },
  { path: '/sweeps/:sweep_id', title: null, key: null },
  { path: '/queue', title: 'Queue', key: 'q' },
  { path: '/preemptions', title: 'Preemptions', key: 'p' },
  { path: '/prices', title: 'Prices', key: 'c' },
  { path: '/submit', title: 'Submit', key: 's' },
  { path: '/team', title: 'Team', key: 't' },
] as const satisfies Page[]

export type PagePath = (typeof PAGES)[number]['path']

/** The pages of the navigation. */
export const MENU = PAGES.filter((page) => page.title !== null)
