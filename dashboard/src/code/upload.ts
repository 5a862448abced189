// Uploads a code folder in pieces named by their SHA-256. Only missing pieces are sent.

import { sha256 } from '@noble/hashes/sha2.js'
import { bytesToHex } from '@noble/hashes/utils.js'
import { ResponseError, transfer, Unreachable } from '../api/client'
import type { TreeOut } from '../api/types'
import { readable, Unusable, type Folder, type Found } from './folder'
import { tar } from './tar'

/** Length of all pieces of a file except the last, as the service requires. */
export const PIECE_BYTES = 4 * 1024 * 1024
/** Total size of small pieces in one request. A lower value adds requests; a higher value resends more after a failure. */
const BUNDLE_BYTES = 1024 * 1024
const BUNDLE_PIECES = 500
/** Delays before retries of unanswered and rate-limited requests. */
const PAUSES_MS = [500, 1000, 2000, 5000, 10_000, 20_000]

interface Entry {
  path: string
  size_bytes?: number
  pieces?: string[]
  is_executable?: boolean
}

interface Piece {
  of: Found
  content: Blob
}

export interface Progress {
  /** Files are read first, then sent. */
  phase: 'reading' | 'uploading'
  done: number
  total: number
}

interface UploadOptions {
  reports: (progress: Progress) => void
  signal: AbortSignal
}

/** Upload a folder and return its id. Pieces that the service already has are not sent. */
export async function upload(folder: Folder, options: UploadOptions): Promise<string> {
  const { entries, pieces } = await pack(folder, options)
  const ask = () => withRetries(options.signal, () => transfer<TreeOut>('POST', '/v1/code/trees', { entries }))
  const tree = await ask()
  const missing = new Map(tree.missing.flatMap((digest) => (pieces.has(digest) ? [[digest, pieces.get(digest) as Piece]] : [])))
  const total = sum([...missing.values()])
  let done = 0
  for (const bundle of bundles(missing)) {
    options.reports({ phase: 'uploading', done, total })
    await sendBundle(bundle, options.signal)
    done += sum(bundle.map(([, piece]) => piece))
  }
  options.reports({ phase: 'uploading', done, total })
  if (missing.size > 0 && (await ask()).missing.length > 0)
    throw new Unusable('The service did not store all pieces; check its log and try again.')
  return tree.id
}

async function pack(folder: Folder, { reports, signal }: UploadOptions): Promise<{ entries: Entry[]; pieces: Map<string, Piece> }> {
  const pieces = new Map<string, Piece>()
  const entries: Entry[] = []
  const total = folder.found.reduce((size, { content }) => size + content.size, 0)
  let done = 0
  for (const of of folder.found) {
    const entry: Entry = { path: of.path }
    for (let at = 0; at < of.content.size; at += PIECE_BYTES) {
      signal.throwIfAborted()
      reports({ phase: 'reading', done, total })
      const content = of.content.slice(at, at + PIECE_BYTES)
      const bytes = new Uint8Array(await readable(content, of.path))
      // Browsers do not report the executable bit; scripts with a shebang are executable.
      if (at === 0 && bytes[0] === 0x23 && bytes[1] === 0x21) entry.is_executable = true
      // WebCrypto exists only in pages from https or localhost.
      const digest = bytesToHex(sha256(bytes))
      entry.pieces = [...(entry.pieces ?? []), digest]
      pieces.set(digest, { of, content })
      done += bytes.length
    }
    if (of.content.size > 0) entry.size_bytes = of.content.size
    entries.push(entry)
  }
  return { entries, pieces }
}

type Bundle = [string, Piece][]

function* bundles(pieces: Map<string, Piece>): Generator<Bundle> {
  let bundle: Bundle = []
  let room = BUNDLE_BYTES
  for (const [digest, piece] of pieces) {
    if (bundle.length > 0 && (piece.content.size > room || bundle.length === BUNDLE_PIECES)) {
      yield bundle
      bundle = []
      room = BUNDLE_BYTES
    }
    bundle.push([digest, piece])
    room -= piece.content.size
  }
  if (bundle.length > 0) yield bundle
}

async function sendBundle(bundle: Bundle, signal: AbortSignal): Promise<void> {
  const read = await Promise.all(bundle.map(async ([digest, { of, content }]) => ({ digest, content: await readable(content, of.path) })))
  const [first] = read
  if (read.length === 1 && first) await withRetries(signal, () => transfer('PUT', `/v1/code/pieces/${first.digest}`, new Blob([first.content])))
  else await withRetries(signal, () => transfer('POST', '/v1/code/pieces', tar(read.map(({ digest, content }) => [digest, content]))))
}

const sum = (pieces: Piece[]): number => pieces.reduce((size, { content }) => size + content.size, 0)

/** Send an idempotent request with retries. */
async function withRetries<T>(signal: AbortSignal, ask: () => Promise<T | null>): Promise<T> {
  for (const pause of [...PAUSES_MS, null]) {
    signal.throwIfAborted()
    try {
      return (await ask()) as T
    } catch (error) {
      const is_passing = error instanceof Unreachable || (error instanceof ResponseError && (error.status === 429 || error.status === 503))
      if (!is_passing) throw error
      if (pause === null) throw error instanceof Unreachable ? new Error('The service is unreachable. Try again: only missing pieces are sent.') : error
      await new Promise((done) => setTimeout(done, pause))
    }
  }
  throw new Error('unreachable: the last try returns or throws')
}
