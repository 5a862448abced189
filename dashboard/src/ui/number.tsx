// Numbers with a tooltip that explains them, on hover, touch and keyboard focus.

import { useEffect, useId, useRef, useState, type ReactNode } from 'react'
import { exactMoney, money } from '../format'

/** Gap between a number and its tooltip. A higher value hides the tooltip while the pointer crosses the gap. */
const GAP_PX = 2
/** Smallest distance from the window's edges. */
const RIM_PX = 8

interface ExplainedProps {
  children: ReactNode
  by: ReactNode
  /** Id of the element that names the number. */
  label?: string | undefined
  /** Further effect of a click. */
  act?: () => void
  /** Reached with the arrow keys from the column heading instead of Tab, since a table has hundreds. */
  in_table?: boolean
}

/** The tooltip is in the top layer, so that neither a scrolling table nor a dialog clips it. */
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
  // The tooltip stays after keyboard focus; after a click, such as on a sort heading, it would cover the data.
  const leave = () => setIsShown(button.current?.matches(':focus-visible') ?? false)
  return (
    // Not onPointerEnter: React derives it from pointerout, which no browser sends for content that was replaced under the pointer.
    <span className="explained" onPointerOver={() => setIsShown(true)} onPointerLeave={leave}>
      <button
        ref={button} type="button" id={own} aria-describedby={id} {...(label && { 'aria-labelledby': `${label} ${own}` })} {...(in_table && { tabIndex: -1 })}
        onFocus={() => setIsShown(true)}
        onBlur={() => setIsShown(false)}
        onClick={(event) => {
          event.currentTarget.focus() // Some browsers do not focus a touched button.
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

/** Place the tooltip below the number, or above it for lack of room, inside the window. */
function placed(near: HTMLElement, tip: HTMLElement): void {
  const at = near.getBoundingClientRect()
  const { width, height } = tip.getBoundingClientRect()
  const has_room = at.bottom + GAP_PX + height + RIM_PX <= innerHeight || at.top < height
  tip.style.top = `${has_room ? at.bottom + GAP_PX : at.top - GAP_PX - height}px`
  tip.style.left = `${Math.max(RIM_PX, Math.min(at.left, document.documentElement.clientWidth - width - RIM_PX))}px`
}

interface MoneyProps {
  micros: number
  /** Simulated prices are not billed. */
  simulated?: boolean
  estimate?: boolean
  /** Text of the tooltip, for numbers in tables. */
  by?: string
}

/** An amount of money, with a tilde before simulated and estimated ones. */
export function Money({ micros, simulated, estimate, by }: MoneyProps) {
  const is_soft = simulated || estimate
  const why = simulated ? ', simulated: nothing is billed' : estimate ? ', estimated high: price unknown' : ''
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

/** The saving against on-demand prices; a negative one is labelled as overpaid. */
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

/** A dash for an unknown value, with the reason. */
export function Absent({ why }: { why: string }) {
  return (
    <span className="absent" title={why}>
      <span aria-hidden="true">–</span>
      <span className="visually-hidden">{why}</span>
    </span>
  )
}
