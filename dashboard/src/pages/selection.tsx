// A dialog that acts on the jobs of a filter or on chosen ones: a preview, then one result for each job.

import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useId, useRef, useState, type FormEvent } from 'react'
import { newKey, send, transfer } from '../api/client'
import { tagChanges } from '../api/tag-changes'
import type { JobActionResult, JobActions, JobSelection } from '../api/types'
import { count, many } from '../format'
import { Labelled } from '../ui/field'
import { ErrorMessage, Loaded } from '../ui/panel'
import { Badge } from '../ui/badge'
import { Table, type Column } from '../ui/table'

type ActionName = 'cancel' | 'pause' | 'resume' | 'retry' | 'label'

const TITLES: Record<ActionName, string> = { cancel: 'Cancel', pause: 'Pause', resume: 'Resume', retry: 'Retry', label: 'Label' }
const NAMES = Object.keys(TITLES) as ActionName[]
/** Jobs of one request. A lower value sends more requests; with a higher value a request may time out. */
const AT_ONCE = 100

/** The jobs of an action: those of a filter, or chosen ones. */
export interface Target {
  selection?: JobSelection
  job_ids?: string[]
}

interface SelectionProps {
  /** Label of the button. */
  title: string
  /** Title of the dialog. */
  asks: string
  target: Target
  /** Possible actions; all by default. */
  actions?: ActionName[]
}

export function SelectionActions({ title, asks, target, actions = NAMES }: SelectionProps) {
  const dialog = useRef<HTMLDialogElement>(null)
  const [opened, setOpened] = useState<Target | null>(null)
  const id = useId()
  const is_danger = actions.length === 1 && actions[0] === 'cancel'
  return (
    <>
      <button type="button" className={is_danger ? 'danger' : ''} onClick={() => { setOpened(target); dialog.current?.showModal() }}>{title}</button>
      <dialog ref={dialog} className="wide" aria-labelledby={id} onClose={() => setOpened(null)}>
        {/* The jobs are those at the opening: the rows behind the dialog may change. */}
        {opened && <SelectionForm titleId={id} asks={asks} target={opened} actions={actions} close={() => dialog.current?.close()} />}
      </dialog>
    </>
  )
}

interface FormProps {
  titleId: string
  asks: string
  target: Target
  actions: ActionName[]
  close: () => void
}

function SelectionForm({ titleId, asks, target, actions, close }: FormProps) {
  const client = useQueryClient()
  const [action, setAction] = useState<ActionName>(actions[0] ?? 'cancel')
  const [reason, setReason] = useState('')
  const [typed, setTyped] = useState('')
  const tags = action === 'label' ? tagChanges(typed) : {}
  const body = { action, ...target, tags, ...(reason && { reason }) }
  const preview = useQuery({
    queryKey: ['selection', action, target, tags],
    queryFn: () => transfer<JobActions>('POST', '/v1/jobs/actions', { ...body, dry_run: true }),
    enabled: tags !== null,
    gcTime: 0,
    retry: false,
  })
  const mutation = useMutation({
    mutationFn: async () => {
      const ids = preview.data?.jobs.filter(({ result }) => result === 'done').map(({ job_id }) => job_id) ?? []
      const key = newKey()
      const jobs: JobActionResult[] = []
      for (let first = 0; first < ids.length; first += AT_ONCE) {
        const some = { ...body, job_ids: ids.slice(first, first + AT_ONCE) }
        jobs.push(...((await send<JobActions>('POST', '/v1/jobs/actions', some, { 'Idempotency-Key': key }))?.jobs ?? []))
      }
      return jobs
    },
    onSettled: () => client.invalidateQueries(),
  })
  const due = preview.data?.done ?? 0
  const submit = (event: FormEvent) => {
    event.preventDefault()
    mutation.mutate()
  }
  if (mutation.data) return <Results titleId={titleId} action={action} jobs={mutation.data} close={close} />
  return (
    <form onSubmit={submit}>
      <h2 id={titleId}>{asks}</h2>
      {actions.length > 1 && (
        <Labelled label="Action">
          {(named) => (
            <select {...named} value={action} onChange={(event) => setAction(event.target.value as ActionName)}>
              {actions.map((name) => <option key={name} value={name}>{TITLES[name]}</option>)}
            </select>
          )}
        </Labelled>
      )}
      {action === 'label' ? (
        <Labelled label="Tags" hint="name=value sets a tag, name- removes it; separated by commas" flaw={typed && tags === null ? 'write name=value, or name-' : undefined}>
          {(named) => <input {...named} value={typed} maxLength={2000} autoComplete="off" onChange={(event) => setTyped(event.target.value)} />}
        </Labelled>
      ) : action === 'retry' ? null : (
        <Labelled label="Reason" hint="Shown in the history of each job.">
          {(named) => <input {...named} value={reason} maxLength={500} autoComplete="off" onChange={(event) => setReason(event.target.value)} />}
        </Labelled>
      )}
      {tags !== null && (
        <Loaded query={preview} height="short" empty={(found) => (found?.jobs.length ? null : <p>No job matches.</p>)}>
          {(found) => found && <>
            <p role="status">{`${many(found.done, 'job')} would change, ${count(found.unchanged)} would not, ${count(found.refused)} would be refused.`}</p>
            <ResultTable jobs={found.jobs} is_preview />
          </>}
        </Loaded>
      )}
      {mutation.error && <ErrorMessage error={mutation.error} means="Not done, or not for all jobs" />}
      <p className="row end">
        <button type="button" onClick={close}>Back</button>
        <button type="submit" className={action === 'cancel' ? 'danger' : 'primary'} disabled={due === 0 || tags === null || preview.isFetching || mutation.isPending}>
          {mutation.isPending ? 'Sending…' : `${TITLES[action]} ${many(due, 'job')}`}
        </button>
      </p>
    </form>
  )
}

function Results({ titleId, action, jobs, close }: { titleId: string; action: ActionName; jobs: JobActionResult[]; close: () => void }) {
  const counted = (result: JobActionResult['result']) => jobs.filter((job) => job.result === result).length
  return (
    <div className="dialog-body">
      <h2 id={titleId}>{TITLES[action]}: results</h2>
      <p role="status">{`${many(counted('done'), 'job')} done, ${count(counted('unchanged'))} unchanged, ${count(counted('refused'))} refused.`}</p>
      <ResultTable jobs={jobs} />
      <p className="row end"><button type="button" className="primary" autoFocus onClick={close}>Close</button></p>
    </div>
  )
}

function ResultTable({ jobs, is_preview = false }: { jobs: JobActionResult[]; is_preview?: boolean }) {
  const columns: Column<JobActionResult>[] = [
    { name: 'name', title: 'Job', value: (job) => job.name, cell: (job) => <>{job.name} <small className="id">{job.job_id}</small></> },
    { name: 'state', title: 'State', value: (job) => job.state, cell: (job) => (job.state ? <Badge state={job.state} notice={null} /> : '–') },
    { name: 'result', title: is_preview ? 'Would be' : 'Result', value: (job) => job.result, cell: (job) => job.result },
    { name: 'reason', title: 'Why', value: (job) => job.reason, cell: (job) => job.reason ?? (job.new_job_id ? `as job ${job.new_job_id}` : '') },
  ]
  return <Table name="selection" caption="Jobs of the action" columns={columns} rows={jobs} keyOf={(job) => job.job_id} />
}
