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

/** What is known about a request without an answer. */
type Loss = 'read' | 'undone' | 'unknown'

const LOSSES: Record<Loss, { title: string | null; sentence: string }> = {
  read: { title: null, sentence: 'The service does not answer. Jobs go on without it; this page tries again by itself.' },
  undone: {
    title: 'Nothing was done',
    sentence: 'The service does not answer, and the request was not sent. Jobs keep running. Press it again when the service is back; this page does not repeat it.',
  },
  unknown: {
    title: 'It is not known whether this was done',
    sentence: 'The service stopped answering after the request was sent. Jobs keep running. When it answers again, look whether it was done, and press it again if not; this page does not repeat it.',
  },
}

/** No answer at all. */
export class Unreachable extends Error {
  /** Null: the caller says what it means. */
  readonly title: string | null

  constructor(readonly loss: Loss) {
    super(LOSSES[loss].sentence)
    this.title = LOSSES[loss].title
  }
}

/** How long the service may take to show that it answers, before a change is sent. Lower: a busy service is taken for a dead one;
 *  higher: people wait at a dead line. */
const KNOCK_MS = 4_000
/** How long the answer to a change may take. Lower: changes that were done are reported as unknown; higher: people wait at a dead line. */
const CHANGE_MS = 10_000

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

export async function ask(path: string, init: RequestInit = {}, loss: Loss = 'read'): Promise<Response> {
  let answer: Response
  try {
    answer = await fetch(path, init)
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error
    throw new Unreachable(loss)
  }
  if (!answer.ok) throw await refusal(answer)
  return answer
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, signal ? { signal } : {})).json() as Promise<T>
}

/** Answers of proxies whose service does not answer them. */
const GATEWAYS = [502, 503, 504]
const isOfProxy = (error: unknown): boolean => error instanceof Refused && GATEWAYS.includes(error.status) && error.docs === null

/** What a change needs to know first. Where it is not answered in time, nothing was done. */
export async function askBefore(path: string): Promise<Response> {
  try {
    return await ask(path, { signal: AbortSignal.timeout(KNOCK_MS), cache: 'no-store' }, 'undone')
  } catch (error) {
    throw isOfProxy(error) ? new Unreachable('undone') : error
  }
}

/** Fails where the service does not answer. A change is sent only after this, so that it is known that nothing was done. */
async function knock(): Promise<void> {
  try {
    await (await askBefore('/v1/whoami')).body?.cancel()
  } catch (error) {
    // A refusal is an answer; the change is refused in words of its own.
    if (!(error instanceof Refused)) throw error
  }
}

type Method = 'POST' | 'PUT' | 'PATCH' | 'DELETE'

/** Send a request for as long as it takes: one that changes nothing, or that the caller repeats. */
export async function transfer<T>(method: Method, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T | null> {
  return deliver(path, initOf(method, body, headers), 'read')
}

/** Change something at the service. Fails within seconds where it does not answer, and is never repeated by itself. */
export async function send<T>(method: Method, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T | null> {
  const init = initOf(method, body, headers)
  await knock()
  try {
    return await deliver<T>(path, { ...init, signal: AbortSignal.timeout(CHANGE_MS) }, 'unknown')
  } catch (error) {
    throw error instanceof Refused && !isOfProxy(error) ? error : new Unreachable('unknown')
  }
}

function initOf(method: Method, body: unknown, headers: Record<string, string>): RequestInit {
  const is_raw = body instanceof Blob
  const all = { 'Content-Type': is_raw ? 'application/octet-stream' : 'application/json', ...headers, ...(csrf && { 'X-CSRF-Token': csrf }) }
  return { method, headers: all, ...(body !== undefined && { body: is_raw ? body : JSON.stringify(body) }) }
}

async function deliver<T>(path: string, init: RequestInit, loss: Loss): Promise<T | null> {
  const answer = await ask(path, init, loss)
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
