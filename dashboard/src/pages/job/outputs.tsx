// Output files of a job: the files that the nodes of its newest attempt left in the store, each with a link to download it.

import { useOutputs } from '../../api/queries'
import type { Job, OutputFile, Outputs } from '../../api/types'
import { inMebibytes, many } from '../../format'
import { Loaded } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { At } from '../../ui/time'

const columns = (job: Job, epoch: number | null): Column<OutputFile>[] => [
  { name: 'path', title: 'File', cell: (one) => <a href={`/v1/jobs/${encodeURIComponent(job.id)}/outputs/${one.number}?epoch=${epoch}`} download>{one.path}</a>, value: (one) => one.path },
  { name: 'node', title: 'Node', numeric: true, cell: (one) => one.node, value: (one) => one.node },
  { name: 'size_bytes', title: 'Size', numeric: true, cell: (one) => inMebibytes(one.size_bytes), value: (one) => one.size_bytes },
]

export function OutputFiles({ job }: { job: Job }) {
  return (
    <Loaded query={useOutputs(job.id)} empty={absence}>
      {(outputs) => (
        <>
          <p className="note">
            {outputs.attempt === null ? 'The newest attempt' : `Attempt ${outputs.attempt}`} exited with code {outputs.exit_code} and left {many(outputs.files.length, 'file')}
            {outputs.collected_at && <> at <At at={outputs.collected_at} /></>}.
          </p>
          {outputs.left_out.map((one) => <p key={one.path} className="note">{one.path} was left out: it {one.reason}.</p>)}
          {outputs.left_out_count > outputs.left_out.length && <p className="note">{many(outputs.left_out_count - outputs.left_out.length, 'more file')} were left out.</p>}
          {outputs.files.length > 0 && <Table name="outputs" caption="Output files" columns={columns(job, outputs.epoch)} rows={outputs.files} keyOf={(one) => String(one.number)} />}
        </>
      )}
    </Loaded>
  )
}

function absence({ patterns, epoch }: Outputs) {
  if (patterns.length === 0) return <p>No output files: the job file names none in <code>holdfast.outputs</code>.</p>
  return epoch === null ? <p>No output files yet. They are collected when an attempt succeeds or fails.</p> : null
}
