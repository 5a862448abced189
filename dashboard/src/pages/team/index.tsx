// The team page: budgets, projects, users, tokens, notifications and the audit log.

import { useCurrentUser } from '../../api/queries'
import { Tabs } from '../../ui/tabs'
import { Audit } from './audit'
import { Budgets } from './budgets'
import { Notifications } from './notifications'
import { Projects } from './projects'
import { Tokens } from './tokens'
import { Users } from './users'

export default function TeamPage() {
  const { data: who } = useCurrentUser()
  if (!who) return null
  const roles = Object.entries(who.roles).map(([project, role]) => `${role} of ${project}`)
  return (
    <>
      <title>Team · Holdfast</title>
      <h1>Team</h1>
      <p className="quiet">
        Signed in as {who.user ?? 'the service owner'}{who.is_admin && who.user && ', service admin'}
        {roles.length > 0 && `; ${roles.join(', ')}`}.
      </p>
      <Tabs
        label="Team"
        tabs={[
          { name: 'budgets', title: 'Budgets', body: () => <Budgets who={who} /> },
          { name: 'projects', title: 'Projects', body: () => <Projects who={who} /> },
          { name: 'users', title: 'Users', body: () => <Users who={who} /> },
          { name: 'tokens', title: 'Tokens', body: () => <Tokens who={who} /> },
          { name: 'notifications', title: 'Notifications', body: () => <Notifications /> },
          { name: 'audit', title: 'Audit', body: () => <Audit who={who} /> },
        ]}
      />
    </>
  )
}
