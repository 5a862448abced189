// A number that says where it comes from: on hovering, and on focus by the keyboard.

import { useId, type ReactNode } from 'react'
import { exactMoney, money } from '../format'

export function Explained({ children, by }: { children: ReactNode; by: ReactNode }) {
  const id = useId()
  return (
    <span className="explained">
      <button type="button" aria-describedby={id} onKeyDown={(event) => event.key === 'Escape' && event.currentTarget.blur()}>
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
}

/** An amount; a tilde before what nobody pays, or nobody told. */
export function Money({ micros, simulated, estimate }: MoneyProps) {
  const is_soft = simulated || estimate
  const why = simulated ? ', simulated: nobody pays it' : estimate ? ', estimated high: nobody told the price' : ''
  return (
    <span className="money" title={exactMoney(micros) + why}>
      {micros < 0 && '−'}
      {is_soft && '~'}
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
  return (
    <div className="tile">
      <dt>{label}</dt>
      <dd>
        <Explained by={by}>
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
