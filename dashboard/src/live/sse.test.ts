import { expect, it } from 'vitest'
import { reader } from './sse'

const STREAM = ': ping\n\nid: 7\nevent: NodesReady\ndata: {"a":\ndata: 1}\n\nevent: end\ndata: {}\n\n'

it('parses messages cut at any byte', () => {
  for (let cut = 0; cut <= STREAM.length; cut++) {
    const take = reader()

    const received = [...take(STREAM.slice(0, cut)), ...take(STREAM.slice(cut))]

    expect(received).toEqual([
      { id: '7', kind: 'NodesReady', data: '{"a":\n1}' },
      { id: null, kind: 'end', data: '{}' },
    ])
  }
})

it('holds incomplete messages back', () => {
  expect(reader()('id: 1\ndata: half')).toEqual([])
})
