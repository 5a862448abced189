// A folder of code on its way to the service: in pieces under their SHA-256, of which only those are sent that it lacks.

import { sha256 } from '@noble/hashes/sha2.js'
import { bytesToHex } from '@noble/hashes/utils.js'
import { Refused, transfer, Unreachable } from '../api/client'
import type { TreeOut } from '../api/types'
import { readable, Unusable, type Folder, type Found } from './folder'
import { tar } from './tar'

/** Length of all pieces of a file but the last, as the service wants them. */
export const PIECE_BYTES = 4 * 1024 * 1024
/** What small pieces of one request have together. A lower value makes more requests; a higher value loses more when one breaks. */
const BUNDLE_BYTES = 1024 * 1024
const BUNDLE_PIECES = 500
/** Before a request is repeated that had no answer, or was one too many. */
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
  /** What is being done: files are read, then sent. */
  phase: 'reading' | 'uploading'
  done: number
  total: number
}

interface Course {
  reports: (progress: Progress) => void
  signal: AbortSignal
}

/** The id of a folder, once the service has everything of it. What it has from before is not sent. */
export async function upload(folder: Folder, course: Course): Promise<string> {
  const { entries, pieces } = await pack(folder, course)
  const ask = () => patiently(course.signal, () => transfer<TreeOut>('POST', '/v1/code/trees', { entries }))
  const tree = await ask()
  const missing = new Map(tree.missing.flatMap((digest) => (pieces.has(digest) ? [[digest, pieces.get(digest) as Piece]] : [])))
  const total = sum([...missing.values()])
  let done = 0
  for (const bundle of bundles(missing)) {
    course.reports({ phase: 'uploading', done, total })
    await sendBundle(bundle, course.signal)
    done += sum(bundle.map(([, piece]) => piece))
  }
  course.reports({ phase: 'uploading', done, total })
  if (missing.size > 0 && (await ask()).missing.length > 0)
    throw new Unusable('The service did not keep what it was sent; look at its log, and try again.')
  return tree.id
}

async function pack(folder: Folder, { reports, signal }: Course): Promise<{ entries: Entry[]; pieces: Map<string, Piece> }> {
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
      // Browsers do not say which files are executable; a script that names its interpreter is.
      if (at === 0 && bytes[0] === 0x23 && bytes[1] === 0x21) entry.is_executable = true
      // Not WebCrypto: it is there only in pages that came over https, or from this machine.
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
  if (read.length === 1 && first) await patiently(signal, () => transfer('PUT', `/v1/code/pieces/${first.digest}`, new Blob([first.content])))
  else await patiently(signal, () => transfer('POST', '/v1/code/pieces', tar(read.map(({ digest, content }) => [digest, content]))))
}

const sum = (pieces: Piece[]): number => pieces.reduce((size, { content }) => size + content.size, 0)

/** The answer to a request that may be repeated: each one here changes nothing the second time. */
async function patiently<T>(signal: AbortSignal, ask: () => Promise<T | null>): Promise<T> {
  for (const pause of [...PAUSES_MS, null]) {
    signal.throwIfAborted()
    try {
      return (await ask()) as T
    } catch (error) {
      const is_passing = error instanceof Unreachable || (error instanceof Refused && (error.status === 429 || error.status === 503))
      if (!is_passing) throw error
      if (pause === null) throw error instanceof Unreachable ? new Error('The service does not answer. Try again: only what it still lacks is sent.') : error
      await new Promise((done) => setTimeout(done, pause))
    }
  }
  throw new Error('unreachable: the last try returns or throws')
}
