// Parses server-sent events. EventSource is not used: it does not distinguish a refusal from an outage,
// and it drops events of kinds without a registered listener.

export interface Message {
  id: string | null
  kind: string
  data: string
}

/** A parser that accepts chunks cut at any byte and returns the complete messages. */
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
