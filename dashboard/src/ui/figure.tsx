// A number that says where it comes from: to whoever points at it, touches it, or comes to it by keyboard.

import { useEffect, useId, useRef, useState, type ReactNode } from 'react'
import { exactMoney, money } from '../format'

/** Between what is explained and its explanation. A pointer that crosses more loses it on the way. */
const GAP_PX = 2
/** From the rims of the window. */
const RIM_PX = 8

interface ExplainedProps {
  children: ReactNode
  by: ReactNode
  /** The element that says what it is a figure of. */
  label?: string | undefined
  /** What it does besides, when it is pressed. */
  act?: () => void
  /** Reached by arrows, from the heading of its column, and not by Tab: a table has hundreds. */
  in_table?: boolean
}

/** The explanation is in the top layer of the page: nothing cuts it off, neither a table that scrolls nor a dialog. */
export function Explained({ children, by, label, act, in_table }: ExplainedProps) {
  const id = useId()
  const own = `${id}-own`
  const button = useRef<HTMLButtonElement>(null)
  const tip = useRef<HTMLSpanElement>(null)
  const [is_shown, setIsShown] = useState(false)
  useEffect(() => {
    if (!is_shown || !button.current || !tip.current) return
    const [near, it] = [button.current, tip.current]
    const place = () => placed(near, it)
    it.showPopover()
    place()
    document.addEventListener('scroll', place, true)
    return () => {
      document.removeEventListener('scroll', place, true)
      it.hidePopover()
    }
  }, [is_shown])
  // What was come to by keyboard stays; what was clicked, as to sort by it, would lie over what one wants to see.
  const leave = () => setIsShown(button.current?.matches(':focus-visible') ?? false)
  return (
    <span className="explained" onPointerEnter={() => setIsShown(true)} onPointerLeave={leave}>
      <button
        ref={button} type="button" id={own} aria-describedby={id} {...(label && { 'aria-labelledby': `${label} ${own}` })} {...(in_table && { tabIndex: -1 })}
        onFocus={() => setIsShown(true)}
        onBlur={() => setIsShown(false)}
        onClick={(event) => {
          event.currentTarget.focus() // Which not every browser does by itself, where it is touched.
          act?.()
        }}
        onKeyDown={(event) => event.key === 'Escape' && setIsShown(false)}
      >
        {children}
      </button>
      <span ref={tip} role="tooltip" id={id} popover="manual">
        {by}
      </span>
    </span>
  )
}

/** Below it, or above where there is no room, and never beyond the rims. */
function placed(near: HTMLElement, tip: HTMLElement): void {
  const at = near.getBoundingClientRect()
  const { width, height } = tip.getBoundingClientRect()
  const has_room = at.bottom + GAP_PX + height + RIM_PX <= innerHeight || at.top < height
  tip.style.top = `${has_room ? at.bottom + GAP_PX : at.top - GAP_PX - height}px`
  tip.style.left = `${Math.max(RIM_PX, Math.min(at.left, document.documentElement.clientWidth - width - RIM_PX))}px`
}

interface MoneyProps {
  micros: number
  /** Nobody pays it. */
  simulated?: boolean
  estimate?: boolean
  /** Where it comes from: then it is a figure that explains itself, as those of tables are. */
  by?: string
}

/** An amount; a tilde before what nobody pays, or nobody told. */
export function Money({ micros, simulated, estimate, by }: MoneyProps) {
  const is_soft = simulated || estimate
  const why = simulated ? ', simulated: nobody pays it' : estimate ? ', estimated high: nobody told the price' : ''
  const exact = exactMoney(micros) + why
  const words = (
    <>
      {is_soft && '~'}
      {micros < 0 && '−'}
      {money(Math.abs(micros))}
    </>
  )
  if (by === undefined) return <span className="money" title={exact}>{words}</span>
  return (
    <Explained by={<><strong>{exact}</strong><span>{by}</span></>} in_table>
      <span className="money">{words}</span>
    </Explained>
  )
}

/** What was saved against prices on demand; where it cost more than those, a word says so. */
export function Saved({ micros, ...rest }: MoneyProps) {
  return <>{micros < 0 && <small>overpaid </small>}<Money micros={Math.abs(micros)} {...rest} /></>
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
