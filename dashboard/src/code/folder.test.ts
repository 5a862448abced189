import { strToU8, zipSync } from 'fflate'
import { expect, it } from 'vitest'
import { chosen, dropped, MOST_ENTRIES, unzipped } from './folder'

const paths = ({ found }: { found: { path: string }[] }) => found.map(({ path }) => path).sort()

function file(path: string, text = ''): File {
  const made = new File([text], path.split('/').at(-1) ?? path)
  return Object.defineProperty(made, 'webkitRelativePath', { value: path })
}

function zip(name: string, members: Record<string, string>): File {
  const packed = zipSync(Object.fromEntries(Object.entries(members).map(([path, text]) => [path, strToU8(text)])))
  return new File([packed as Uint8Array<ArrayBuffer>], name)
}

type Inside = { [name: string]: string | Inside }

/** A dropped folder, of which a browser lists one entry at a time. */
function entry(name: string, inside: string | Inside, within = ''): FileSystemEntry {
  const of = { name, fullPath: `${within}/${name}`, isFile: typeof inside === 'string', isDirectory: typeof inside !== 'string' }
  if (typeof inside === 'string') {
    const read = (done: (file: File) => void, fail: () => void) => (inside === 'SOCKET' ? fail() : done(file(name, inside)))
    return { ...of, file: read } as unknown as FileSystemEntry
  }
  const createReader = () => {
    const rest = Object.entries(inside).map(([child, more]) => entry(child, more, of.fullPath))
    return { readEntries: (done: (some: FileSystemEntry[]) => void) => done(rest.splice(0, 1)) }
  }
  return { ...of, createReader } as unknown as FileSystemEntry
}

it('reads a chosen folder without excluded paths', async () => {
  const folder = await chosen([file('code/train.py'), file('code/.gitignore', 'runs/\n*.bin\n'), file('code/runs/a'), file('code/data/b.bin')])

  expect(folder.name).toBe('code')
  expect(paths(folder)).toEqual(['.gitignore', 'data/', 'train.py'])
  expect(folder.left_out).toEqual(['runs/', 'data/b.bin'])
})

it('opens no excluded folder', async () => {
  const closed = { get secret(): never { throw new Error('opened') } }
  const top = entry('code', { '.gitignore': 'venv/', '.skyignore': 'data/', venv: { 'a.py': '1' }, data: closed, out: {}, src: { 'b.py': '2' } })

  const folder = await dropped(top as FileSystemDirectoryEntry)

  expect(paths(folder)).toEqual(['.gitignore', '.skyignore', 'out/', 'src/b.py', 'venv/a.py'])
  expect(folder.left_out).toEqual(['data/'])
})

it('names unreadable files', async () => {
  const top = entry('code', { src: { 'x.sock': 'SOCKET' } })

  await expect(dropped(top as FileSystemDirectoryEntry)).rejects.toThrow(/^code\/src\/x\.sock cannot be read: /)
})

it('unpacks a zip and strips a root folder of the same name', async () => {
  const around = await unzipped(zip('code (1).zip', { 'code/': '', 'code/train.py': 'x', 'code/out/': '', 'code/.gitignore': '*.bin', 'code/a.bin': 'x', '__MACOSX/._train.py': '' }))
  const plain = await unzipped(zip('code.zip', { 'src/train.py': 'x' }))

  expect(paths(around)).toEqual(['.gitignore', 'out/', 'train.py'])
  expect(around.left_out).toEqual(['a.bin'])
  expect(paths(plain)).toEqual(['src/train.py'])
})

it('rejects broken zips, empty folders and large contents with a message', async () => {
  const many = Array.from({ length: MOST_ENTRIES + 1 }, (_, at) => ({ webkitRelativePath: `code/data/${at}` }) as File)

  await expect(unzipped(new File(['text'], 'a.zip'))).rejects.toThrow('a.zip cannot be unpacked')
  await expect(chosen([])).rejects.toThrow('The folder contains no files')
  await expect(chosen(many)).rejects.toThrow(/which is the limit. Most are in data \(20,001\)/)
})
