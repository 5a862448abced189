// Changes of tags, as a user types them.

/** Parse changes of tags: name=value sets one, name- removes one. Null if a word is neither. */
export function tagChanges(text: string): Record<string, string | null> | null {
  const words = text.split(',').map((word) => word.trim()).filter((word) => word !== '')
  const changes: Record<string, string | null> = {}
  for (const word of words) {
    const at = word.indexOf('=')
    if (at > 0) changes[word.slice(0, at)] = word.slice(at + 1)
    else if (at < 0 && word.length > 1 && word.endsWith('-')) changes[word.slice(0, -1)] = null
    else return null
  }
  return words.length > 0 ? changes : null
}
