// Excludes `.git` and the paths of the ignore file from a code folder. The command line has the same rules. Pure.

import ignore from 'ignore'

/** The first existing file at the root of the folder applies. */
export const IGNORE_FILES = ['.skyignore', '.gitignore']

/** The topmost excluded part of a path; null for an included path. Folders end with a slash. */
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
