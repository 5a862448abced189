// Server-sent events as text, read piece by piece. Not EventSource: that tells neither a refusal from an outage, nor
// events of kinds that nobody listed beforehand.

export interface Message {
  id: string | null
  kind: string
  data: string
}

/** Takes pieces of a stream wherever they are cut, and gives the messages that are whole. */
export function reader(): (piece: string) => Message[] {
  let rest = ''
  return (piece) => {
    const blocks = (rest + piece).replaceAll('\r\n', '\n').split('\n\n')
    rest = blocks.pop() ?? ''
    return blocks.map(parse).filter((message) => message !== null)
  }
}

function parse(block: string): Message | null {
  const message: Message = { id: null, kind: 'message', data: '' }
  const data: string[] = []
  for (const line of block.split('\n')) {
    const [, name, value] = /^([a-z]+): ?(.*)$/.exec(line) ?? []
    if (name === 'id') message.id = value ?? ''
    if (name === 'event') message.kind = value ?? ''
    if (name === 'data') data.push(value ?? '')
  }
  message.data = data.join('\n')
  return message.id === null && data.length === 0 ? null : message
}
