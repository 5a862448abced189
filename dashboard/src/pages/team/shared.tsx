// Shared parts of the team page.

import type { Can } from '../../api/types'

/** The trimmed text of a form field. */
export const formText = (form: FormData, name: string): string => String(form.get(name) ?? '').trim()

/** Items separated by commas or spaces. */
export const splitList = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean)

/** Shown instead of a part that the user may not see. */
export function NotPermitted({ can }: { can: Can | undefined }) {
  return <p className="empty">{can?.reason ?? 'Not permitted'}.</p>
}
