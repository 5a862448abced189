// A table with sorting, a filter and CSV download. Sort order and filter are kept in the address.

import { useState, type KeyboardEvent, type ReactNode, type UIEvent } from 'react'
import { useSearchParams } from 'react-router'
import { Explained } from './number'

export interface Column<Row> {
  name: string
  title: string
  numeric?: boolean
  /** The formula of its values, as the tooltip of the heading. */
  by?: string
  cell: (row: Row) => ReactNode
  /** Value for sorting and CSV: money in dollars, time in seconds. */
  value: (row: Row) => string | number | null
}

/** Rows that are chosen with checkboxes. */
export interface RowChoice<Row> {
  chosen: ReadonlySet<string>
  /** Adds or removes rows, by their keys. */
  choose: (keys: string[], is_chosen: boolean) => void
  /** Name of a row, for its checkbox. */
  nameOf: (row: Row) => string
}

interface TableProps<Row> {
  /** Prefix of its parameters in the address, and name of the CSV file. */
  name: string
  caption: string
  columns: Column<Row>[]
  rows: Row[]
  keyOf: (row: Row) => string
  /** Rows that stay last in every sort order. */
  isLast?: (row: Row) => boolean
  /** Whether the table has a filter field. */
  searchable?: boolean
  choice?: RowChoice<Row>
  /** Content below the rows, such as a button that loads more. */
  foot?: ReactNode
}

/** Name of the column of buttons, which is neither sortable nor exported. */
export const ACTIONS = 'actions'
/** Longer tables scroll in a box and render only the visible rows. */
const MANY = 60
/** Row height in the style sheet. */
const ROW_PX = 32
const BOX_PX = 20 * ROW_PX
const BEYOND = 8

export function Table<Row>({ name, caption, columns, rows, keyOf, isLast, searchable, choice, foot }: TableProps<Row>) {
  const [params, setParams] = useSearchParams()
  const sort = params.get(`${name}.sort`) ?? ''
  const find = params.get(`${name}.find`) ?? ''
  const put = (word: string, value: string) =>
    setParams(
      (now) => {
        if (value) now.set(`${name}.${word}`, value)
        else now.delete(`${name}.${word}`)
        return now
      },
      { replace: true },
    )
  const found = find ? rows.filter((row) => matches(columns, row, find.toLowerCase())) : rows
  const shown = sorted(columns, found, sort, isLast)
  const [top, setTop] = useState(0)
  const is_long = shown.length > MANY
  const begin = is_long ? Math.max(0, Math.min(Math.floor(top / ROW_PX), shown.length) - BEYOND) : 0
  const end = is_long ? Math.min(shown.length, Math.ceil((top + BOX_PX) / ROW_PX) + BEYOND) : shown.length
  const scrolled = (event: UIEvent<HTMLDivElement>) => is_long && setTop(event.currentTarget.scrollTop)
  return (
    <div className="table">
      <div className="row tools">
        {searchable ? (
          <input
            type="search"
            placeholder="Filter"
            aria-label={`Filter ${caption}`}
            value={find}
            onChange={(event) => put('find', event.target.value)}
          />
        ) : <span className="small" aria-hidden="true">{caption}</span>}
        <button type="button" className="quiet" onClick={() => download(name, columns, shown)}>
          CSV<span className="visually-hidden"> of {caption}</span>
        </button>
      </div>
      <div className={is_long ? 'scroll long' : 'scroll'} tabIndex={0} role="region" aria-label={caption} onScroll={scrolled} onKeyDown={moveInColumn}>
        <table {...(is_long && { 'aria-rowcount': shown.length + 1 })}>
          <caption className="visually-hidden">{caption}</caption>
          <thead>
            <tr>
              {choice && <ChooseAll caption={caption} choice={choice} keys={shown.map(keyOf)} />}
              {columns.map((column) => (
                <Heading key={column.name} column={column} sort={sort} put={(value) => put('sort', value)} />
              ))}
            </tr>
          </thead>
          <tbody>
            <Gap rows={begin} />
            {shown.slice(begin, end).map((row, at) => (
              <tr key={keyOf(row)} {...(is_long && { 'aria-rowindex': begin + at + 2 })}>
                {choice && (
                  <td className="choice">
                    {/* Reached with the arrow keys from the checkbox of the heading: a table has hundreds. */}
                    <label><input type="checkbox" tabIndex={-1} aria-label={`Select ${choice.nameOf(row)}`} checked={choice.chosen.has(keyOf(row))} onChange={(event) => choice.choose([keyOf(row)], event.target.checked)} /></label>
                  </td>
                )}
                {columns.map((column) => (
                  <td key={column.name} className={column.numeric ? 'number' : ''}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            ))}
            <Gap rows={shown.length - end} />
          </tbody>
        </table>
      </div>
      {found.length === 0 && rows.length > 0 && <p className="note">No row contains “{find}”.</p>}
      {foot}
    </div>
  )
}

/** Space of the rows that are not rendered. */
const Gap = ({ rows }: { rows: number }) => (rows > 0 ? <tr aria-hidden="true" className="gap-row" style={{ height: rows * ROW_PX }} /> : null)

function ChooseAll<Row>({ caption, choice, keys }: { caption: string; choice: RowChoice<Row>; keys: string[] }) {
  const chosen = keys.filter((key) => choice.chosen.has(key)).length
  const is_some = chosen > 0 && chosen < keys.length
  return (
    <th scope="col" className="choice">
      <label>
        <input type="checkbox" aria-label={`Select all of ${caption}`} checked={chosen > 0 && !is_some} ref={(box) => { if (box) box.indeterminate = is_some }} onChange={() => choice.choose(keys, chosen < keys.length)} />
      </label>
    </th>
  )
}

function Heading<Row>({ column, sort, put }: { column: Column<Row>; sort: string; put: (sort: string) => void }) {
  if (column.name === ACTIONS) return <th scope="col">{column.title}</th>
  const up = sort === column.name
  const down = sort === `-${column.name}`
  const turn = () => put(up ? `-${column.name}` : down ? '' : column.name)
  const words = <>{column.title}<span aria-hidden="true">{up ? ' ↑' : down ? ' ↓' : ''}</span></>
  return (
    <th scope="col" className={column.numeric ? 'number' : ''} aria-sort={up ? 'ascending' : down ? 'descending' : 'none'}>
      {column.by ? <Explained by={column.by} act={turn}>{words}</Explained> : <button type="button" onClick={turn}>{words}</button>}
    </th>
  )
}

/** Arrow keys move along a column, from its heading through the buttons, links and checkboxes of its cells. */
function moveInColumn(event: KeyboardEvent<HTMLElement>): void {
  const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1 }
  const step = steps[event.key]
  const cell = event.target instanceof Element ? event.target.closest('td, th, dialog') : null
  if (step === undefined || !(cell instanceof HTMLTableCellElement)) return
  event.preventDefault()
  const rows = [...(cell.closest('table')?.rows ?? [])]
  for (let at = rows.findIndex((row) => row === cell.parentElement) + step; at >= 0 && at < rows.length; at += step) {
    const to = rows[at]?.cells[cell.cellIndex]?.querySelector<HTMLElement>('a, button, input')
    if (to) return to.focus()
  }
}

const matches = <Row,>(columns: Column<Row>[], row: Row, word: string): boolean =>
  columns.some((column) => String(column.value(row) ?? '').toLowerCase().includes(word))

function sorted<Row>(columns: Column<Row>[], rows: Row[], sort: string, isLast: (row: Row) => boolean = () => false): Row[] {
  const column = columns.find(({ name }) => name === sort.replace('-', ''))
  if (!column) return rows
  const sign = sort.startsWith('-') ? -1 : 1
  const key = column.value
  return [...rows].sort((a, b) => Number(isLast(a)) - Number(isLast(b)) || sign * compare(key(a), key(b)))
}

function compare(a: string | number | null, b: string | number | null): number {
  if (typeof a === 'number' && typeof b === 'number') return a - b
  return String(a ?? '').localeCompare(String(b ?? ''), 'en', { numeric: true })
}

/** A CSV cell that spreadsheets read as text instead of a formula. */
function quoted(value: string | number | null): string {
  const text = typeof value === 'string' && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? '')
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

function download<Row>(name: string, columns: Column<Row>[], rows: Row[]): void {
  const exported = columns.filter((column) => column.name !== ACTIONS)
  const lines = [exported.map((column) => column.name), ...rows.map((row) => exported.map((column) => column.value(row)))]
  const text = lines.map((line) => line.map(quoted).join(',')).join('\r\n')
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([text + '\r\n'], { type: 'text/csv' }))
  link.download = `${name}.csv`
  link.click()
  URL.revokeObjectURL(link.href)
}
