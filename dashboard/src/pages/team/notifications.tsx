// Notification channels of a project and their deliveries.

import { useState } from 'react'
import { useSearchParams } from 'react-router'
import { send } from '../../api/client'
import { useChannels, useDeliveries } from '../../api/people'
import { useProjects } from '../../api/queries'
import type { Can, Channel, Delivery, NewChannel, Project } from '../../api/types'
import { duration, many } from '../../format'
import { Action } from '../../ui/action'
import { Field } from '../../ui/field'
import { Loaded } from '../../ui/panel'
import { ACTIONS, Table, type Column } from '../../ui/table'
import { Ago } from '../../ui/time'
import { formText, splitList } from './shared'

const path = (project: string, channel = '', rest = '') =>
  `/v1/projects/${encodeURIComponent(project)}/channels${channel && `/${encodeURIComponent(channel)}`}${rest}`

export function Notifications() {
  const [params, setParams] = useSearchParams()
  return (
    <Loaded query={useProjects()} empty={(all) => (all.length === 0 ? <p>You are not a member of any project.</p> : null)}>
      {(all) => {
        const project = all.find((one) => one.name === params.get('project')) ?? all[0]
        if (!project) return null
        return (
          <>
            <label className="row">
              Project
              <select value={project.name} onChange={(event) => setParams((now) => (now.set('project', event.target.value), now), { replace: true })}>
                {all.map(({ name }) => <option key={name}>{name}</option>)}
              </select>
            </label>
            <Channels key={project.name} project={project} />
          </>
        )
      }}
    </Loaded>
  )
}

function Channels({ project: { name: project, can: all_can } }: { project: Project }) {
  const [params, setParams] = useSearchParams()
  const [made, setMade] = useState<NewChannel | null>(null)
  const can = all_can?.manage_channels
  const add = async (form: FormData) =>
    setMade(
      await send<NewChannel>('POST', path(project), {
        name: formText(form, 'name'), url: formText(form, 'url'), kinds: splitList(formText(form, 'kinds')),
        digest_s: Number(formText(form, 'digest_s')), per_hour: Number(formText(form, 'per_hour')),
      }),
    )
  const chosen = params.get('channel')
  return (
    <>
      {made?.secret && (
        <div className="note warn" role="alert">
          <p>Signing secret of the webhooks of {made.name}. It is shown only once: copy it now.</p>
          <p><code className="secret">{made.secret}</code></p>
          <p className="row end"><button type="button" onClick={() => setMade(null)}>Done</button></p>
        </div>
      )}
      <Loaded query={useChannels(project)} empty={(all) => (all.length === 0 ? <p>{project} has no channels. Job files may still name their own.</p> : null)} before={
        <div className="row">
          <Action title="New channel" asks={`New channel of ${project}`} can={can} act={add}>
            <Field name="name" label="Name" />
            <Field name="url" label="URL" hint="https://..., mailto:..., or an Apprise URL. It is not displayed again." />
            <Field name="kinds" label="Events" hint="Such as preempted failed budget. Empty: all." />
            <Field name="digest_s" label="Digest interval (seconds)" type="number" value={0} hint="0: send each notification immediately." />
            <Field name="per_hour" label="Maximum messages per hour" type="number" value={30} />
          </Action>
        </div>
      }>
        {(all) => (
          <Table name="channels" caption={`Channels of ${project}`} rows={all} keyOf={(one) => one.id}
            columns={columns(project, can, setMade, (name) => setParams((now) => (now.set('channel', name), now), { replace: true }))} />
        )}
      </Loaded>
      {chosen && <Deliveries project={project} channel={chosen} />}
    </>
  )
}

const columns = (project: string, can: Can | undefined, made: (channel: NewChannel | null) => void, show: (name: string) => void): Column<Channel>[] => [
  { name: 'name', title: 'Channel', value: (one) => one.name, cell: (one) => <button type="button" className="link" onClick={() => show(one.name)}>{one.name}</button> },
  { name: 'way', title: 'Type', value: (one) => one.way, cell: (one) => one.way },
  { name: 'shown', title: 'Address', value: (one) => one.shown, cell: (one) => one.shown },
  { name: 'kinds', title: 'Events', value: (one) => one.kinds.join(' '), cell: (one) => one.kinds.join(', ') || <span className="quiet">all</span> },
  { name: 'digest_s', title: 'Digest', value: (one) => one.digest_s, cell: (one) => (one.digest_s ? duration(1000 * one.digest_s) : <span className="quiet">immediate</span>) },
  { name: 'made_by', title: 'Created by', value: (one) => one.made_by, cell: (one) => one.made_by || 'service owner' },
  {
    name: ACTIONS, title: 'Actions', value: () => null,
    cell: ({ name, way }) => (
      <>
        <Action title="Test" asks={`Send a test message to ${name}?`} can={can} act={async () => {
          await send<Delivery>('POST', path(project, name, '/test'))
          show(name)
        }} />
        {way === 'webhook' && <Action title="New secret" asks={`Replace the secret of ${name}?`} can={can} act={async () => made(await send<NewChannel>('POST', path(project, name, '/rotate')))} />}
        <Action title="Remove" asks={`Remove ${name}? Waiting messages are discarded.`} danger can={can} act={() => send('DELETE', path(project, name))} />
      </>
    ),
  },
]

const MARKS: Record<string, string> = { sent: '✓', waiting: '◌', dead: '✕' }
const DELIVERIES: Column<Delivery>[] = [
  { name: 'made_at', title: 'Created', value: (one) => one.made_at, cell: (one) => <Ago at={one.made_at} /> },
  { name: 'kinds', title: 'Events', value: (one) => one.kinds.join(' '), cell: (one) => one.kinds.join(', ') || many(one.news_count, 'notification') },
  { name: 'progress', title: 'Status', value: (one) => one.progress, cell: (one) => `${MARKS[one.progress] ?? '·'} ${one.progress}` },
  { name: 'tries', title: 'Attempts', numeric: true, value: (one) => one.tries, cell: (one) => one.tries },
  { name: 'trouble', title: 'Error', value: (one) => one.trouble, cell: (one) => one.trouble ?? <span className="quiet">none</span> },
]

function Deliveries({ project, channel }: { project: string; channel: string }) {
  return (
    <>
      <h2>Deliveries to {channel}</h2>
      <Loaded query={useDeliveries(project, channel)} empty={({ deliveries }) => (deliveries.length === 0 ? <p>No deliveries yet. Send a test message to try the channel.</p> : null)}>
        {({ deliveries }) => <Table name="deliveries" caption={`Deliveries to ${channel}`} columns={DELIVERIES} rows={deliveries} keyOf={(one) => one.id} />}
      </Loaded>
    </>
  )
}
