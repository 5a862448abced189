// A number that says where it comes from: on hovering, and on focus by the keyboard.

import { useId, type ReactNode } from 'react'
import { exactMoney, money } from '../format'

interface ExplainedProps {
  children: ReactNode
  by: ReactNode
  /** The element that says what it is a figure of. */
  label?: string
}

export function Explained({ children, by, label }: ExplainedProps) {
  const id = useId()
  const own = `${id}-own`
  return (
    <span className="explained">
      <button type="button" id={own} aria-describedby={id} {...(label && { 'aria-labelledby': `${label} ${own}` })} onKeyDown={(event) => event.key === 'Escape' && event.currentTarget.blur()}>
        {children}
      </button>
      <span role="tooltip" id={id}>
        {by}
      </span>
    </span>
  )
}

interface MoneyProps {
  micros: number
  /** Nobody pays it. */
  simulated?: boolean
  estimate?: boolean
  /** Where it comes from, for whoever points at it: in tables, where a button in each cell would be in everybody's way. */
  by?: string
}

/** An amount; a tilde before what nobody pays, or nobody told. */
export function Money({ micros, simulated, estimate, by }: MoneyProps) {
  const is_soft = simulated || estimate
  const why = simulated ? ', simulated: nobody pays it' : estimate ? ', estimated high: nobody told the price' : ''
  return (
    <span className="money" title={[exactMoney(micros) + why, by].filter(Boolean).join('\n')}>
      {is_soft && '~'}
      {micros < 0 && '−'}
      {money(Math.abs(micros))}
    </span>
  )
}

interface TileProps {
  label: string
  value: ReactNode
  by: ReactNode
  children?: ReactNode
}

export function Tile({ label, value, by, children }: TileProps) {
  const id = useId()
  return (
    <div className="tile">
      <dt id={id}>{label}</dt>
      <dd>
        <Explained by={by} label={id}>
          <span className="value">{value}</span>
        </Explained>
        <small>{children}</small>
      </dd>
    </div>
  )
}

/** What is not known, and why. */
export function Absent({ why }: { why: string }) {
  return (
    <span className="absent" title={why}>
      <span aria-hidden="true">–</span>
      <span className="unseen">{why}</span>
    </span>
  )
}
