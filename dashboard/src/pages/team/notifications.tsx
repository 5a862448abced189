// Where news of a project goes, and what became of it.

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
import { listed, said } from './words'

const path = (project: string, channel = '', rest = '') =>
  `/v1/projects/${encodeURIComponent(project)}/channels${channel && `/${encodeURIComponent(channel)}`}${rest}`

export function Notifications() {
  const [words, setWords] = useSearchParams()
  return (
    <Loaded query={useProjects()} empty={(all) => (all.length === 0 ? <p>You are in no project.</p> : null)}>
      {(all) => {
        const project = all.find((one) => one.name === words.get('project')) ?? all[0]
        if (!project) return null
        return (
          <>
            <label className="row">
              Project
              <select value={project.name} onChange={(event) => setWords((now) => (now.set('project', event.target.value), now), { replace: true })}>
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
  const [words, setWords] = useSearchParams()
  const [made, setMade] = useState<NewChannel | null>(null)
  const can = all_can?.manage_channels
  const add = async (form: FormData) =>
    setMade(
      await send<NewChannel>('POST', path(project), {
        name: said(form, 'name'), url: said(form, 'url'), kinds: listed(said(form, 'kinds')),
        digest_s: Number(said(form, 'digest_s')), per_hour: Number(said(form, 'per_hour')),
      }),
    )
  const chosen = words.get('channel')
  return (
    <>
      {made?.secret && (
        <div className="note warn" role="alert">
          <p>With this, webhooks of {made.name} are signed. It is shown this once: keep it now.</p>
          <p><code className="secret">{made.secret}</code></p>
          <p className="row end"><button type="button" onClick={() => setMade(null)}>I have it</button></p>
        </div>
      )}
      <Loaded query={useChannels(project)} empty={(all) => (all.length === 0 ? <p>News of {project} goes nowhere yet, but where a job file says.</p> : null)} before={
        <div className="row">
          <Action title="New channel" asks={`Where is news of ${project} to go?`} can={can} act={add}>
            <Field name="name" label="Name" />
            <Field name="url" label="URL" hint="https://..., mailto:..., or what apprise calls a chat. It is shown to nobody again." />
            <Field name="kinds" label="Kinds of news" hint="Such as preempted failed budget. Empty: all." />
            <Field name="digest_s" label="Gather for so many seconds" type="number" value={0} hint="0: each goes by itself." />
            <Field name="per_hour" label="Messages in an hour, at most" type="number" value={30} />
          </Action>
        </div>
      }>
        {(all) => (
          <Table name="channels" caption={`Channels of ${project}`} rows={all} keyOf={(one) => one.id}
            columns={columns(project, can, setMade, (name) => setWords((now) => (now.set('channel', name), now), { replace: true }))} />
        )}
      </Loaded>
      {chosen && <Deliveries project={project} channel={chosen} />}
    </>
  )
}

const columns = (project: string, can: Can | undefined, made: (channel: NewChannel | null) => void, show: (name: string) => void): Column<Channel>[] => [
  { name: 'name', title: 'Channel', value: (one) => one.name, cell: (one) => <button type="button" className="link" onClick={() => show(one.name)}>{one.name}</button> },
  { name: 'way', title: 'Goes by', value: (one) => one.way, cell: (one) => one.way },
  { name: 'shown', title: 'To', value: (one) => one.shown, cell: (one) => one.shown },
  { name: 'kinds', title: 'News', value: (one) => one.kinds.join(' '), cell: (one) => one.kinds.join(', ') || <span className="quiet">all</span> },
  { name: 'digest_s', title: 'Gathered', value: (one) => one.digest_s, cell: (one) => (one.digest_s ? duration(1000 * one.digest_s) : <span className="quiet">at once</span>) },
  { name: 'made_by', title: 'Made by', value: (one) => one.made_by, cell: (one) => one.made_by || 'the owner' },
  {
    name: ACTIONS, title: 'Change', value: () => null,
    cell: ({ name, way }) => (
      <>
        <Action title="Test" asks={`Send a message to ${name}?`} can={can} act={async () => {
          await send<Delivery>('POST', path(project, name, '/test'))
          show(name)
        }} />
        {way === 'webhook' && <Action title="New secret" asks={`Another secret for ${name}?`} can={can} act={async () => made(await send<NewChannel>('POST', path(project, name, '/rotate')))} />}
        <Action title="Remove" asks={`Remove ${name}? What waits is not sent any more.`} danger can={can} act={() => send('DELETE', path(project, name))} />
      </>
    ),
  },
]

const MARKS: Record<string, string> = { sent: '✓', waiting: '◌', dead: '✕' }
const DELIVERIES: Column<Delivery>[] = [
  { name: 'made_at', title: 'Made', value: (one) => one.made_at, cell: (one) => <Ago at={one.made_at} /> },
  { name: 'kinds', title: 'About', value: (one) => one.kinds.join(' '), cell: (one) => one.kinds.join(', ') || many(one.news_count, 'piece of news', 'pieces of news') },
  { name: 'progress', title: 'Became', value: (one) => one.progress, cell: (one) => `${MARKS[one.progress] ?? '·'} ${one.progress}` },
  { name: 'tries', title: 'Tries', numeric: true, value: (one) => one.tries, cell: (one) => one.tries },
  { name: 'trouble', title: 'Trouble', value: (one) => one.trouble, cell: (one) => one.trouble ?? <span className="quiet">none</span> },
]

function Deliveries({ project, channel }: { project: string; channel: string }) {
  return (
    <>
      <h2>What was sent to {channel}</h2>
      <Loaded query={useDeliveries(project, channel)} empty={({ deliveries }) => (deliveries.length === 0 ? <p>Nothing yet; a test sends something.</p> : null)}>
        {({ deliveries }) => <Table name="deliveries" caption={`Messages to ${channel}`} columns={DELIVERIES} rows={deliveries} keyOf={(one) => one.id} />}
      </Loaded>
    </>
  )
}
