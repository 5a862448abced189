import { createHash } from 'node:crypto'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { ResponseError } from '../api/client'
import { Unusable } from './folder'
import { PIECE_BYTES, upload, type Progress } from './upload'

interface Sent {
  path: string
  body: Blob | string
}

/** A service: the digests that it has, what it was sent, and how often it breaks off. */
let has: Set<string>
let sent: Sent[]
let breaks: number
let refusal: Response | null

const digestOf = (content: string) => createHash('sha256').update(content).digest('hex')
const folder = (files: Record<string, string>) => ({
  name: 'code',
  left_out: [],
  found: Object.entries(files).map(([path, text]) => ({ path, content: new Blob([text]) })),
})
const entries = () => (JSON.parse(sent.find(({ path }) => path.endsWith('trees'))?.body as string) as { entries: object[] }).entries

async function answer(path: string, init: RequestInit): Promise<Response> {
  sent.push({ path, body: init.body as Blob | string })
  if (refusal) return refusal
  if (path.endsWith('/trees')) {
    const pieces = (JSON.parse(init.body as string) as { entries: { pieces?: string[] }[] }).entries.flatMap((one) => one.pieces ?? [])
    return Response.json({ id: 'tree', missing: [...new Set(pieces)].filter((digest) => !has.has(digest)) })
  }
  if (breaks-- > 0) throw new TypeError('Failed to fetch')
  if (init.method === 'PUT') has.add(path.split('/').at(-1) ?? '')
  else {
    const text = await (init.body as Blob).text()
    for (let at = 0; text[at] && text[at] !== '\0'; at += 512 + Math.ceil(parseInt(text.slice(at + 124, at + 135), 8) / 512) * 512) has.add(text.slice(at, at + 64))
  }
  return new Response(null, { status: 204 })
}

async function run(files: Record<string, string>, reports: (progress: Progress) => void = () => undefined): Promise<string> {
  const done = upload(folder(files), { reports, signal: new AbortController().signal })
  done.catch(() => undefined)
  await vi.advanceTimersByTimeAsync(60_000)
  return done
}

beforeEach(() => {
  has = new Set()
  sent = []
  breaks = 0
  refusal = null
  vi.useFakeTimers({ toFake: ['setTimeout'] })
  vi.stubGlobal('fetch', answer)
})
afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

it('sends small pieces in one request and each once', async () => {
  const files = { 'a.py': 'one', 'copy.py': 'one', 'run.sh': '#!/bin/sh', 'out/': '', 'empty.py': '' }

  const id = await run(files)
  const first = sent.length
  await run({ ...files, 'a.py': 'two' })

  expect(id).toBe('tree')
  expect(has).toEqual(new Set(['one', 'two', '#!/bin/sh'].map(digestOf)))
  expect(sent.slice(0, first).map(({ path }) => path)).toEqual(['/v1/code/trees', '/v1/code/pieces', '/v1/code/trees'])
  expect(sent.slice(first).map(({ path }) => path)).toEqual(['/v1/code/trees', `/v1/code/pieces/${digestOf('two')}`, '/v1/code/trees'])
  expect(entries()).toEqual([
    { path: 'a.py', size_bytes: 3, pieces: [digestOf('one')] },
    { path: 'copy.py', size_bytes: 3, pieces: [digestOf('one')] },
    { path: 'run.sh', size_bytes: 9, pieces: [digestOf('#!/bin/sh')], is_executable: true },
    { path: 'out/' },
    { path: 'empty.py' },
  ])
})

it('splits a large file and reports progress', async () => {
  const large = 'x'.repeat(PIECE_BYTES) + 'end'
  const seen: Progress[] = []

  await run({ 'large.bin': large }, (progress) => seen.push(progress))

  expect(entries()).toEqual([{ path: 'large.bin', size_bytes: large.length, pieces: [digestOf(large.slice(0, PIECE_BYTES)), digestOf('end')] }])
  expect(seen.at(-1)).toEqual({ phase: 'uploading', done: large.length, total: large.length })
})

it('continues after a lost connection', async () => {
  breaks = 2

  expect(await run({ 'a.py': 'one' })).toBe('tree')
  expect(sent.filter(({ path }) => path.includes('pieces'))).toHaveLength(3)
})

it('fails after retries with the files that another try sends', async () => {
  breaks = 100

  await expect(run({ 'a.py': 'one' })).rejects.toThrow('only missing pieces are sent')
})

it('fails immediately on a client error', async () => {
  refusal = Response.json({ title: 'Too large', detail: 'HOLDFAST_CODE_MB allows 16.0 MiB', status: 409 }, { status: 409 })

  await expect(run({ 'a.py': 'one' })).rejects.toThrow(ResponseError)
  expect(sent).toHaveLength(1)
})

it('names a file that changed after it was chosen', async () => {
  const content = new Blob(['text'])
  content.slice = () => ({ arrayBuffer: () => Promise.reject(new DOMException('changed', 'NotReadableError')) }) as Blob
  const changed = { name: 'code', left_out: [], found: [{ path: 'a.py', content }] }

  const done = upload(changed, { reports: () => undefined, signal: new AbortController().signal })

  await expect(done).rejects.toThrow(Unusable)
  await expect(done).rejects.toThrow('a.py cannot be read: it changed after it was chosen')
})
