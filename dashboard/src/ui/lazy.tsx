// Components whose code is fetched on first use.

import { lazy, type ComponentType, type LazyExoticComponent } from 'react'

/** A component that is fetched on first use. If the fetch fails, a message replaces it and the rest of the page stays. */
export function lazyComponent<P extends object>(load: () => Promise<{ default: ComponentType<P> }>): LazyExoticComponent<ComponentType<P>> {
  return lazy(() => load().catch((): { default: ComponentType<P> } => ({ default: NotLoaded })))
}

/** The service did not respond, or an upgrade has replaced its files since the page was opened. */
function NotLoaded() {
  return (
    <p role="status">
      This part of the page could not be loaded. <button type="button" onClick={() => window.location.reload()}>Reload the page</button>
    </p>
  )
}
