// A job file as form fields, each of which changes one key of the file and nothing else. Pure.

import { isCollection, isMap, isScalar, isSeq, parseDocument, type Document } from 'yaml'

export interface Field {
  name: string
  path: string[]
  label: string
  hint: string
  /** The hint in a file with node groups. */
  hint_of_groups?: string
  whole?: true
  lines?: true
  /** Whether it takes a full row of the form. */
  wide?: true
}

export const FIELDS: Field[] = [
  { name: 'name', path: ['name'], label: 'Name', hint: 'Shown in lists.' },
  { name: 'infra', path: ['resources', 'infra'], label: 'Where', hint: 'local, slurm, or a cloud such as aws/us-east-1. Empty: the cheapest anywhere.', hint_of_groups: 'The place of groups that name none.' },
  { name: 'accelerators', path: ['resources', 'accelerators'], label: 'Accelerators per node', hint: 'Such as A100:8. Empty: none.' },
  { name: 'num_nodes', path: ['num_nodes'], label: 'Nodes', hint: 'Empty: 1.', hint_of_groups: 'Empty: the nodes of all groups.', whole: true },
  { name: 'workdir', path: ['workdir'], label: 'Working directory', hint: 'Absolute, or relative to the base directory below. Uploaded code replaces it. Empty: an empty directory.', wide: true },
  { name: 'run', path: ['run'], label: 'Command', hint: 'For a script with checkpoints: holdfast-worker run train.py.', lines: true, wide: true },
  { name: 'store', path: ['holdfast', 'checkpoint', 'store'], label: 'Checkpoint store', hint: 's3://, gs:// or az://bucket/prefix, or file:///path. Spot nodes need one.' },
  { name: 'every', path: ['holdfast', 'checkpoint', 'every'], label: 'Checkpoint every', hint: 'auto, 15m, or 500 steps.' },
  { name: 'max_cost_usd', path: ['holdfast', 'limits', 'max_cost_usd'], label: 'Maximum cost (USD)', hint: 'The job pauses at this cost. Empty: no limit.', whole: true },
  { name: 'deadline', path: ['holdfast', 'limits', 'deadline'], label: 'Deadline', hint: 'Such as 48h. Empty: none.' },
]

const GROUPS = ['holdfast', 'groups']
const PLAN = ['holdfast', 'plan']
/** The key that makes a file planned. */
export const PLAN_WORK: Field = { name: 'work', path: [...PLAN, 'work'], label: 'Work', hint: '' }

export interface ParsedJobFile {
  /** Value of each field; undefined if the file uses a structure that the form cannot express. */
  values: Record<string, string | undefined>
  /** Whether the file divides its nodes into groups. */
  has_groups: boolean
  /** Whether a plan chooses its nodes. */
  has_plan: boolean
  /** The YAML error; null for valid YAML. */
  flaw: string | null
}

export function parseJobFile(text: string): ParsedJobFile {
  const document = parseDocument(text)
  const [error] = document.errors
  if (error) return { values: {}, has_groups: false, has_plan: false, flaw: error.message.split('\n')[0] ?? error.message }
  if (document.contents !== null && !isMap(document.contents)) return { values: {}, has_groups: false, has_plan: false, flaw: 'a job file is a map of names and values' }
  const has_groups = isSeq(document.getIn(GROUPS, true))
  return { values: Object.fromEntries(FIELDS.map((field) => [field.name, valueOf(document, field.path)])), has_groups, has_plan: isMap(document.getIn(PLAN, true)), flaw: null }
}

function valueOf(document: Document, path: string[]): string | undefined {
  for (let depth = 1; depth < path.length; depth++) {
    const parent = document.getIn(path.slice(0, depth), true)
    if (parent !== undefined && !isMap(parent) && !(isScalar(parent) && parent.value === null)) return undefined
  }
  const node = document.getIn(path, true)
  if (isCollection(node)) return undefined
  const value: unknown = isScalar(node) ? node.value : node
  return value === undefined || value === null ? '' : String(value)
}

/** The file with a changed field; an empty value removes it. Comments and order are kept. */
export function withValue(text: string, field: Field, value: string): string {
  const document = parseDocument(text)
  if (document.contents === null) document.contents = document.createNode({}) as unknown as typeof document.contents
  if (value === '') remove(document, field.path)
  else {
    makeRoom(document, field.path)
    document.setIn(field.path, field.whole && /^\d+(\.\d+)?$/.test(value) ? Number(value) : value)
  }
  return document.toString({ lineWidth: 0, flowCollectionPadding: false })
}

/** Replace keys without a value on the path by maps. */
function makeRoom(document: Document, path: string[]): void {
  for (let depth = 1; depth < path.length; depth++) {
    const parent = document.getIn(path.slice(0, depth), true)
    if (isScalar(parent) && parent.value === null) document.setIn(path.slice(0, depth), document.createNode({}))
  }
}

/** Remove a key and the maps that become empty. */
function remove(document: Document, path: string[]): void {
  document.deleteIn(path)
  for (let depth = path.length - 1; depth > 0; depth--) {
    const parent = document.getIn(path.slice(0, depth), true)
    if (isMap(parent) && parent.items.length === 0) document.deleteIn(path.slice(0, depth))
  }
}
