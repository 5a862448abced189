// A part of a page with its four states: not there yet, nothing to show, refused, and older than it should be.

import type { ReactNode } from 'react'
import { Refused, Unreachable } from '../api/client'
import type { Query } from '../api/queries'
import { Ago } from './time'

interface Words {
  title: string
  /** Beside the title. */
  aside?: ReactNode
  className?: string
}

export function Section({ title, aside, className, children }: Words & { children: ReactNode }) {
  const id = `section-${title.toLowerCase().replaceAll(/\W+/g, '-')}`
  return (
    <section className={`panel ${className ?? ''}`} aria-labelledby={id}>
      <header>
        <h2 id={id}>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  )
}

interface PanelProps<T> extends Words {
  query: Query<T>
  /** How high it will be, so that nothing moves once it is there. */
  height?: 'short' | 'middle' | 'tall'
  /** What to say where there is nothing; null where there is something. */
  empty?: (data: T) => ReactNode
  /** What stands above it, once it is there: also where there is nothing. */
  before?: ReactNode
  children: (data: T) => ReactNode
}

export function Panel<T>({ query, height = 'middle', empty, children, ...words }: PanelProps<T>) {
  return (
    <Section {...words}>
      <Loaded query={query} height={height} {...(empty && { empty })}>
        {children}
      </Loaded>
    </Section>
  )
}

export function Loaded<T>({ query, height = 'middle', empty, before, children }: Omit<PanelProps<T>, 'title'>) {
  const { data, error, isPending, isPlaceholderData, refetch, dataUpdatedAt } = query
  if (isPending && !error)
    return (
      <div className={`skeleton ${height}`} role="status">
        <span className="unseen">Loading</span>
      </div>
    )
  if (data === undefined) return <Trouble error={error} retry={() => void refetch()} />
  const nothing = empty?.(data) ?? null
  return (
    <>
      {error && (
        <p className="note warn">
          ⚠ From <Ago at={new Date(dataUpdatedAt).toISOString()} />. {error.message}
        </p>
      )}
      {before}
      {/* What stands below is the answer to what was chosen before, and no other. */}
      {isPlaceholderData && <p className="dated" role="status">Still as chosen before; asking…</p>}
      {nothing === null ? children(data) : <div className="empty">{nothing}</div>}
    </>
  )
}

interface TroubleProps {
  error: Error | null
  retry?: () => void
  /** What it means that there is no answer, where the service did not say. */
  means?: string
}

export function Trouble({ error, retry, means = 'This cannot be shown.' }: TroubleProps) {
  const refused = error instanceof Refused ? error : null
  const title = error instanceof Refused || error instanceof Unreachable ? error.title : null
  return (
    <div className="trouble" role="alert">
      <p>
        <strong>✕ {title ?? means}</strong>
      </p>
      <p>{error?.message}</p>
      <p className="row">
        {retry && (
          <button type="button" onClick={retry}>
            Try again
          </button>
        )}
        {refused?.docs && <a href={refused.docs}>What this means</a>}
        {refused?.requestId && <small>request {refused.requestId}</small>}
      </p>
    </div>
  )
}
