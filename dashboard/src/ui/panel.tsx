// Page sections with their four states: loading, empty, failed and out of date.

import { useState, type ReactNode } from 'react'
import { ResponseError, Unreachable } from '../api/client'
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
  /** Expected height, so that the layout does not shift after loading. */
  height?: 'short' | 'middle' | 'tall'
  /** Text for an empty result; null for a result with content. */
  empty?: (data: T) => ReactNode
  /** Content above the result, also above an empty one. */
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

/** The error of a query. One without data loses it while it is requested again, and would show as loading. */
export function useLastError(query: Pick<Query<unknown>, 'error' | 'errorUpdateCount' | 'isPending'>): Error | null {
  const { error, errorUpdateCount, isPending } = query
  const [last, setLast] = useState(error)
  if (error && error !== last) setLast(error)
  return error ?? (isPending && errorUpdateCount > 0 ? last : null)
}

export function Loaded<T>({ query, height = 'middle', empty, before, children }: Omit<PanelProps<T>, 'title'>) {
  const { data, isPending, isPlaceholderData, refetch, dataUpdatedAt } = query
  const error = useLastError(query)
  if (isPending && !error)
    return (
      <div className={`skeleton ${height}`} role="status">
        <span className="visually-hidden">Loading</span>
      </div>
    )
  if (data === undefined) return <ErrorMessage error={error} retry={() => void refetch()} />
  const nothing = empty?.(data) ?? null
  return (
    <>
      {error && (
        <p className="note warn">
          ⚠ Data from <Ago at={new Date(dataUpdatedAt).toISOString()} />. {error.message}
        </p>
      )}
      {before}
      {/* The content below still belongs to the previous selection. */}
      {isPlaceholderData && <p className="outdated" role="status">Previous selection; loading…</p>}
      {nothing === null ? children(data) : <div className="empty">{nothing}</div>}
    </>
  )
}

interface ErrorMessageProps {
  error: Error | null
  retry?: () => void
  /** Title of the message if the service sent none. */
  means?: string
}

export function ErrorMessage({ error, retry, means = 'Not available' }: ErrorMessageProps) {
  const refused = error instanceof ResponseError ? error : null
  const title = error instanceof ResponseError || error instanceof Unreachable ? error.title : null
  return (
    <div className="error-box" role="alert">
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
        {refused?.docs && <a href={refused.docs}>Documentation</a>}
        {refused?.requestId && <small>request {refused.requestId}</small>}
      </p>
    </div>
  )
}
