// Which lines of a text are other ones than before. Pure.

export interface Marked {
  text: string
  /** Whether it was not there before. */
  is_new: boolean
}

/** The lines of a text; new are those that no longest common sequence of lines has. */
export function marked(before: string, after: string): Marked[] {
  const [old, now] = [before.split('\n'), after.split('\n')]
  // common[i][j]: the length of the longest sequence that the rests from i and j have in common.
  const common = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1))
  const at = (i: number, j: number) => common[i]?.[j] ?? 0
  for (let i = old.length - 1; i >= 0; i--)
    for (let j = now.length - 1; j >= 0; j--) {
      const row = common[i]
      if (row) row[j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1))
    }
  let i = 0
  return now.map((text, j) => {
    while (i < old.length && old[i] !== text && at(i + 1, j) >= at(i, j + 1)) i += 1
    const is_new = old[i] !== text
    if (!is_new) i += 1
    return { text, is_new }
  })
}
