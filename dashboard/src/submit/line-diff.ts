// A line diff of two texts. Pure.

export interface DiffLine {
  text: string
  /** Whether the line was added. */
  is_new: boolean
}

/** The lines of `after`; new ones are outside the longest common subsequence. */
export function diffLines(before: string, after: string): DiffLine[] {
  const [old, now] = [before.split('\n'), after.split('\n')]
  // common[i][j]: length of the longest common subsequence of the lines from i and j on.
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
