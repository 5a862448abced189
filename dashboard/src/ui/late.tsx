// Parts of the page that are fetched when they are needed.

import { lazy, type ComponentType, type LazyExoticComponent } from 'react'

/** A component that is fetched later. If the fetch fails, a message stands in its place and the rest of the page stays. */
export function late<P extends object>(load: () => Promise<{ default: ComponentType<P> }>): LazyExoticComponent<ComponentType<P>> {
  return lazy(() => load().catch((): { default: ComponentType<P> } => ({ default: NotLoaded })))
}

/** The service did not answer, or it was upgraded since the page was opened and has other files now. */
function NotLoaded() {
  return (
    <p role="status">
      This part of the page could not be loaded. <button type="button" onClick={() => window.location.reload()}>Reload the page</button>
    </p>
  )
}
