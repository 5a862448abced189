// Requests to the service that this page came from.

import type { Flaw, Problem, Session } from './types'

/** An answer that is no success, in the service's own words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    detail: string,
    readonly docs: string | null,
    readonly requestId: string | null,
    /** Each mistake in what was sent, where the service tells them apart. */
    readonly flaws: Flaw[] = [],
  ) {
    super(detail)
  }
}

/** No answer at all. */
export class Unreachable extends Error {
  constructor(changes: boolean) {
    super(
      changes
        ? 'The service does not answer, so it is not known whether this was done. Jobs keep running. When it answers again, look whether it was done, and repeat it if not.'
        : 'The service does not answer. Jobs go on without it; this page tries again by itself.',
    )
  }
}

/** An Idempotency-Key. Browsers make UUIDs by themselves only where the page came over https, or from this machine. */
export const newKey = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('')

/** Sent with all that changes something; null where no session is needed. */
let csrf: string | null = null

export function holdSession(session: Session | null): void {
  csrf = session?.csrf ?? null
}

async function refusal(answer: Response): Promise<Refused> {
  const told = (await answer.json().catch(() => null)) as Partial<Problem> | null
  return new Refused(
    answer.status,
    told?.title ?? `HTTP ${answer.status}`,
    told?.detail ?? 'the answer was not one of Holdfast',
    told?.type ?? null,
    told?.request_id ?? answer.headers.get('X-Request-ID'),
    told?.errors ?? [],
  )
}

export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  let answer: Response
  try {
    answer = await fetch(path, init)
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error
    throw new Unreachable(init.method !== undefined)
  }
  if (!answer.ok) throw await refusal(answer)
  return answer
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, signal ? { signal } : {})).json() as Promise<T>
}

export async function send<T>(
  method: 'POST' | 'PUT' | 'PATCH' | 'DELETE',
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
): Promise<T | null> {
  const is_raw = body instanceof Blob
  const all = { 'Content-Type': is_raw ? 'application/octet-stream' : 'application/json', ...headers, ...(csrf && { 'X-CSRF-Token': csrf }) }
  const init = body === undefined ? {} : { body: is_raw ? body : JSON.stringify(body) }
  const answer = await ask(path, { method, headers: all, ...init })
  return answer.status === 204 ? null : ((await answer.json()) as T)
}

/** A path with what is asked of it; what is null or empty is left out. */
export function asked(path: string, words: Record<string, string | number | string[] | null>): string {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(words))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== '') query.append(name, String(one))
  return query.size ? `${path}?${query}` : path
}
