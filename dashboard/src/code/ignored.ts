// What of a folder of code is left out: `.git`, and what its ignore file names. The command line has the same rules. Pure.

import ignore from 'ignore'

/** The first that exists counts, and only at the top of the folder. */
export const IGNORE_FILES = ['.skyignore', '.gitignore']

/** The topmost part of a path that is left out; null where all of it is sent. Folders end with a slash. */
export type LeavesOut = (path: string) => string | null

export function leavesOut(text: string): LeavesOut {
  const rules = ignore({ ignorecase: false, allowRelativePaths: true }).add(text)
  return (path) => {
    const names = path.split('/')
    for (let depth = 1; depth <= names.length; depth++) {
      const name = names[depth - 1]
      if (!name) continue
      const part = names.slice(0, depth).join('/') + (depth < names.length ? '/' : '')
      if (name === '.git' || rules.test(part).ignored) return part
    }
    return null
  }
}
