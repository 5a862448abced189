// A code folder in the browser: dropped, chosen, or from a zip. Files excluded by the ignore file are not read.

import { unzipSync } from 'fflate'
import { bytes, count } from '../format'
import { IGNORE_FILES, leavesOut, type LeavesOut } from './ignored'

/** The service's limit. */
export const MOST_ENTRIES = 20_000
/** A lower value refuses zips that fit into memory; a higher value lets a small zip fill it. */
export const MOST_UNZIPPED_BYTES = 1024 ** 3

export interface Found {
  /** Relative path with slashes; the path of an empty folder ends with one. */
  path: string
  content: Blob
}

export interface Folder {
  name: string
  found: Found[]
  /** Topmost excluded paths. */
  left_out: string[]
}

/** An error that the user has to fix in the code. */
export class Unusable extends Error {}

const EMPTY = new Blob([])

/** A folder from a file input. The browser lists all files and no empty folders. */
export async function chosen(files: File[]): Promise<Folder> {
  const name = files[0]?.webkitRelativePath.split('/')[0]
  if (!name) throw new Unusable('The folder contains no files; choose another one.')
  return sifted(name, files.map((file) => ({ path: file.webkitRelativePath.slice(name.length + 1), content: file })))
}

/** A dropped folder. Excluded folders are not opened. */
export async function dropped(top: FileSystemDirectoryEntry): Promise<Folder> {
  const first = await children(top)
  const by_name = new Map(first.map((entry) => [entry.name, entry]))
  const rules = IGNORE_FILES.map((name) => by_name.get(name)).find((entry) => entry?.isFile)
  const leaves = leavesOut(rules ? await textOf(await fileOf(rules as FileSystemFileEntry), rules.name) : '')
  const folder: Folder = { name: top.name, found: [], left_out: [] }
  await walk(first, '', leaves, folder)
  return checked(folder)
}

/** An unpacked zip. If everything is in a folder of the zip's name, that folder is the root. */
export async function unzipped(file: File): Promise<Folder> {
  let size = 0
  let members: Record<string, Uint8Array>
  try {
    members = unzipSync(new Uint8Array(await readable(file, file.name)), {
      filter: ({ name, originalSize }) => {
        size += originalSize
        if (size > MOST_UNZIPPED_BYTES) throw new Unusable(`${file.name} unpacks to more than ${bytes(MOST_UNZIPPED_BYTES)}; use holdfast submit.`)
        return !name.startsWith('__MACOSX/')
      },
    })
  } catch (error) {
    if (error instanceof Unusable) throw error
    throw new Unusable(`${file.name} cannot be unpacked; unpack it yourself and choose the folder.`)
  }
  const paths = Object.keys(members)
  const stem = file.name.replace(/\.zip$/i, '').replace(/ \(\d+\)$/, '')
  const top = paths.length > 0 && paths.every((path) => path.startsWith(`${stem}/`)) ? `${stem}/` : ''
  const found = paths
    .filter((path) => path !== top)
    .map((path) => ({ path: path.slice(top.length), content: new Blob([members[path] as Uint8Array<ArrayBuffer>]) }))
  return sifted(stem, found)
}

async function sifted(name: string, all: Found[]): Promise<Folder> {
  const by_path = new Map(all.map((one) => [one.path, one.content]))
  const rules = IGNORE_FILES.find((path) => by_path.has(path))
  const leaves = leavesOut(rules ? await textOf(by_path.get(rules) ?? EMPTY, rules) : '')
  // Like the command line, sends folders that are empty or whose contents are excluded.
  for (const { path } of all) for (const parent of parentsOf(path)) if (!by_path.has(parent)) by_path.set(parent, EMPTY)
  const left_out = new Set<string>()
  const kept = [...by_path].filter(([path]) => {
    const part = leaves(path)
    if (part !== null) left_out.add(part)
    return part === null
  })
  const full = new Set(kept.flatMap(([path]) => parentsOf(path)))
  const found = kept.filter(([path]) => !full.has(path)).map(([path, content]) => ({ path, content }))
  return checked({ name, found, left_out: [...left_out] })
}

async function walk(entries: FileSystemEntry[], within: string, leaves: LeavesOut, into: Folder): Promise<void> {
  for (const entry of entries) {
    const path = `${within}${entry.name}${entry.isDirectory ? '/' : ''}`
    if (leaves(path) !== null) into.left_out.push(path)
    else if (entry.isFile) into.found.push({ path, content: await fileOf(entry as FileSystemFileEntry) })
    else {
      const below = await children(entry as FileSystemDirectoryEntry)
      const before = into.found.length
      await walk(below, path, leaves, into)
      // Like the command line, sends folders that are empty or whose contents are excluded.
      if (into.found.length === before) into.found.push({ path, content: EMPTY })
    }
    if (into.found.length > MOST_ENTRIES) checked(into)
  }
}

/** Everything in a folder; a browser lists some hundred at a time. */
async function children(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader()
  const all: FileSystemEntry[] = []
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((done, fail) => reader.readEntries(done, () => fail(unreadable(folder.fullPath))))
    if (some.length === 0) return all
    all.push(...some)
  }
}

const fileOf = (entry: FileSystemFileEntry): Promise<File> =>
  new Promise((done, fail) => entry.file(done, () => fail(unreadable(entry.fullPath))))

const textOf = async (content: Blob, path: string): Promise<string> => new TextDecoder().decode(await readable(content, path))

/** The content of a file, or a sentence that names it. */
export async function readable(content: Blob, path: string): Promise<ArrayBuffer> {
  try {
    return await content.arrayBuffer()
  } catch {
    throw unreadable(path)
  }
}

const unreadable = (path: string): Unusable =>
  new Unusable(`${path.replace(/^\//, '')} cannot be read: it changed after it was chosen, is no regular file, or its name is not UTF-8. Correct that, or leave it out with .gitignore, and choose the folder again.`)

function checked(folder: Folder): Folder {
  if (folder.found.length <= MOST_ENTRIES) return folder
  const counts = new Map<string, number>()
  for (const { path } of folder.found) {
    const top = path.split('/')[0] ?? path
    counts.set(top, (counts.get(top) ?? 0) + 1)
  }
  const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([name, n]) => `${name} (${count(n)})`).join(', ')
  throw new Unusable(`${folder.name} contains more than ${count(MOST_ENTRIES)} files, which is the limit. Most are in ${most}; exclude them with .gitignore.`)
}

/** The parent folders of a path, each with a trailing slash. */
function parentsOf(path: string): string[] {
  const names = path.replace(/\/$/, '').split('/')
  return names.slice(1).map((_, at) => `${names.slice(0, at + 1).join('/')}/`)
}
