// HTTP requests to the service.

import type { Flaw, Problem, Session } from './types'

/** A response with an error status. */
export class ResponseError extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    detail: string,
    readonly docs: string | null,
    readonly requestId: string | null,
    /** The validation errors of the request. */
    readonly flaws: Flaw[] = [],
  ) {
    super(detail)
  }
}

/** The outcome of a request without a response. */
type Loss = 'read' | 'undone' | 'unknown'

const LOSSES: Record<Loss, { title: string | null; sentence: string }> = {
  read: { title: null, sentence: 'The service is unreachable. Running jobs are not affected; this page retries automatically.' },
  undone: {
    title: 'Nothing was sent',
    sentence: 'The service is unreachable, so the request was not sent. Running jobs are not affected. Try again once reconnected; actions are not repeated automatically.',
  },
  unknown: {
    title: 'Result unknown',
    sentence: 'The service stopped responding after the request was sent. Running jobs are not affected. Once reconnected, check whether the action took effect and repeat it if not; actions are not repeated automatically.',
  },
}

/** A request without a response. */
export class Unreachable extends Error {
  /** Null: the caller gives a title. */
  readonly title: string | null

  constructor(readonly loss: Loss) {
    super(LOSSES[loss].sentence)
    this.title = LOSSES[loss].title
  }
}

/** Timeout of the reachability check before a change. A lower value reports a busy service as unreachable; a higher value delays the error. */
const REACHABLE_MS = 4_000
/** Timeout of a change. A lower value reports successful changes as unknown; a higher value delays the error. */
const CHANGE_MS = 10_000

/** An Idempotency-Key. crypto.randomUUID exists only in pages from https or localhost. */
export const newKey = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('')

/** CSRF token of changes; null without a session. */
let csrf: string | null = null

export function setSession(session: Session | null): void {
  csrf = session?.csrf ?? null
}

async function refusal(answer: Response): Promise<ResponseError> {
  const problem = (await answer.json().catch(() => null)) as Partial<Problem> | null
  return new ResponseError(
    answer.status,
    problem?.title ?? `HTTP ${answer.status}`,
    problem?.detail ?? 'the response is not from Holdfast',
    problem?.type ?? null,
    problem?.request_id ?? answer.headers.get('X-Request-ID'),
    problem?.errors ?? [],
  )
}

export async function request(path: string, init: RequestInit = {}, loss: Loss = 'read'): Promise<Response> {
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
  return (await request(path, signal ? { signal } : {})).json() as Promise<T>
}

/** Status codes of proxies whose upstream does not respond. */
const GATEWAYS = [502, 503, 504]
const isOfProxy = (error: unknown): boolean => error instanceof ResponseError && GATEWAYS.includes(error.status) && error.docs === null

/** A read that a change depends on. If it fails, nothing was sent. */
export async function preflight(path: string): Promise<Response> {
  try {
    return await request(path, { signal: AbortSignal.timeout(REACHABLE_MS), cache: 'no-store' }, 'undone')
  } catch (error) {
    throw isOfProxy(error) ? new Unreachable('undone') : error
  }
}

/** Throws if the service is unreachable. A change follows only after this check, so that a failure means that nothing was sent. */
async function checkReachable(): Promise<void> {
  try {
    await (await preflight('/v1/whoami')).body?.cancel()
  } catch (error) {
    // An error response proves that the service is reachable.
    if (!(error instanceof ResponseError)) throw error
  }
}

type Method = 'POST' | 'PUT' | 'PATCH' | 'DELETE'

/** Send a request without a timeout: one that changes nothing or that the caller repeats. */
export async function transfer<T>(method: Method, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T | null> {
  return deliver(path, initOf(method, body, headers), 'read')
}

/** Send a change. It fails within seconds if the service does not respond, and is not repeated automatically. */
export async function send<T>(method: Method, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T | null> {
  const init = initOf(method, body, headers)
  await checkReachable()
  try {
    return await deliver<T>(path, { ...init, signal: AbortSignal.timeout(CHANGE_MS) }, 'unknown')
  } catch (error) {
    throw error instanceof ResponseError && !isOfProxy(error) ? error : new Unreachable('unknown')
  }
}

function initOf(method: Method, body: unknown, headers: Record<string, string>): RequestInit {
  const is_raw = body instanceof Blob
  const all = { 'Content-Type': is_raw ? 'application/octet-stream' : 'application/json', ...headers, ...(csrf && { 'X-CSRF-Token': csrf }) }
  return { method, headers: all, ...(body !== undefined && { body: is_raw ? body : JSON.stringify(body) }) }
}

async function deliver<T>(path: string, init: RequestInit, loss: Loss): Promise<T | null> {
  const answer = await request(path, init, loss)
  return answer.status === 204 ? null : ((await answer.json()) as T)
}

/** A path with query parameters; null and empty values are left out. */
export function withQuery(path: string, words: Record<string, string | number | string[] | null>): string {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(words))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== '') query.append(name, String(one))
  return query.size ? `${path}?${query}` : path
}
