// The GPUs of a job as a table, with their faults. Hidden without readings.

import { useGpus } from '../../api/queries'
import type { Gpu, NodeGpus } from '../../api/types'
import { bytes, many, measured } from '../../format'
import { Absent } from '../../ui/number'
import { Section } from '../../ui/panel'
import { Table, type Column } from '../../ui/table'
import { Ago } from '../../ui/time'

interface Row {
  node: NodeGpus
  gpu: Gpu
}

export function Gpus({ job, live }: { job: string; live: boolean }) {
  const { data } = useGpus(job, live)
  const rows = (data?.nodes ?? []).flatMap((node) => node.gpus.map((gpu) => ({ node, gpu })))
  const newest = data?.nodes.map((node) => node.at).sort().at(-1)
  if (rows.length === 0 || !newest) return null
  const faulty = rows.filter(({ gpu }) => gpu.detail)
  return (
    <Section title="GPUs" aside={<small>{many(rows.length, 'GPU')}, read <Ago at={newest} /></small>}>
      {faulty.map(({ node, gpu }) => (
        <p key={keyOf({ node, gpu })} className="note warn">⚠ GPU {gpu.gpu} of {node.host} (node {node.node}) {gpu.detail}</p>
      ))}
      <Table name="gpus" caption="Readings of GPUs" columns={COLUMNS} rows={rows} keyOf={keyOf} />
    </Section>
  )
}

const keyOf = ({ node, gpu }: Row): string => `${node.node} ${gpu.gpu}`

type NumberKey = 'utilization' | 'memory_used_bytes' | 'temperature_c' | 'power_w' | 'clock_mhz' | 'uncorrected_errors'

const number = (name: NumberKey, title: string, by: string, words: (value: number) => string): Column<Row> => ({
  name,
  title,
  by,
  numeric: true,
  value: ({ gpu }) => gpu[name],
  cell: ({ gpu }) => {
    const value = gpu[name]
    return value === null ? <Absent why="not reported by the driver" /> : words(value)
  },
})

const wordsOf = (names: string[]): string => names.join(', ').replaceAll('_', ' ')

/** Faults, or reasons for lowered clocks. A power limit is usual under full load. */
const stateOf = ({ gpu }: Row): string => wordsOf(gpu.faults) || wordsOf(gpu.throttles.filter((reason) => reason !== 'power_cap')) || 'healthy'

const COLUMNS: Column<Row>[] = [
  { name: 'node', title: 'Node', value: ({ node }) => node.node, cell: ({ node }) => <span title={node.host}>{node.node} · {node.host}</span> },
  { name: 'gpu', title: 'GPU', value: ({ gpu }) => gpu.gpu, cell: ({ gpu }) => <span title={gpu.name}>{gpu.gpu}</span> },
  { name: 'state', title: 'State', by: 'its faults in this attempt, or why its clocks are lowered', value: stateOf, cell: (row) => (row.gpu.faults.length > 0 ? <strong>⚠ {stateOf(row)}</strong> : stateOf(row)) },
  number('utilization', 'Busy', 'share of time in which it was busy', (value) => `${Math.round(100 * value)} %`),
  number('memory_used_bytes', 'Memory', 'memory in use', bytes),
  number('temperature_c', 'Temperature', 'degrees Celsius', (value) => `${value} °C`),
  number('power_w', 'Power', 'watts', (value) => `${Math.round(value)} W`),
  number('clock_mhz', 'Clock', 'clock of its multiprocessors', (value) => `${measured(value)} MHz`),
  number('uncorrected_errors', 'ECC errors', 'uncorrected memory errors since its driver was loaded', String),
  { name: 'xids', title: 'Xid', by: 'numbers of driver errors in this attempt', value: ({ gpu }) => gpu.xids.join(' '), cell: ({ gpu }) => gpu.xids.join(', ') || <Absent why="none" /> },
]
