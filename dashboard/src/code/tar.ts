// A tar of plain files with short names, in which the service accepts many pieces in one request. Pure.

const BLOCK = 512

/** A tar of files with names of at most 100 bytes. */
export function tar(files: [string, ArrayBuffer][]): Blob {
  const parts = files.flatMap(([name, content]) => [header(name, content.byteLength), content, new Uint8Array(-content.byteLength & (BLOCK - 1))])
  return new Blob([...parts, new Uint8Array(2 * BLOCK)])
}

function header(name: string, size: number): Uint8Array<ArrayBuffer> {
  const block = new Uint8Array(BLOCK)
  const put = (at: number, text: string) => block.set(new TextEncoder().encode(text), at)
  const octal = (at: number, length: number, value: number) => put(at, value.toString(8).padStart(length - 1, '0'))
  put(0, name)
  octal(100, 8, 0o644)
  octal(108, 8, 0)
  octal(116, 8, 0)
  octal(124, 12, size)
  octal(136, 12, 0)
  put(148, ' '.repeat(8)) // The checksum counts as spaces while it is computed.
  put(156, '0')
  put(257, 'ustar\0' + '00')
  octal(148, 7, block.reduce((total, byte) => total + byte, 0))
  block[154] = 0
  return block
}
