// What the parts of the team's page have in common.

import type { Can } from '../../api/types'

/** What a form says under a name. */
export const said = (form: FormData, name: string): string => String(form.get(name) ?? '').trim()

/** Words that are written one after the other, with commas or without. */
export const listed = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean)

/** In place of what one may not see: why, in the service's words. */
export function NotYours({ can }: { can: Can | undefined }) {
  return <p className="empty">{can?.reason ?? 'The service does not say why this is not shown'}.</p>
}
