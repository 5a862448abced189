// The cost of a job beside the on-demand price of the same useful work.

import type { Bill } from '../../api/types'
import { exactMoney, many, share } from '../../format'
import { usePreferences } from '../../preferences'
import { PAID_PHASES, PHASES } from '../../phases'
import { Absent, Money, Tile } from '../../ui/number'
import { PhaseLegend } from '../../charts/swimlane'
import { CumulativeCostChart } from '../../charts/cumulative-cost-chart'
import { extentOf, lanesOf } from '../../charts/attempt-lanes'
import { useWidth } from '../../charts/width'
import { partWords, useZoom } from './attempts'
import { ChargesTable } from './charges'

export function BillPanel({ bill }: { bill: Bill }) {
  const soft = { simulated: bill.simulated, estimate: bill.is_price_estimate }
  const usd = exactMoney
  return (
    <>
      <dl className="tiles">
        <Tile
          label="Paid"
          value={<Money micros={bill.paid_micros} {...soft} />}
          by={
            <Formula text="paid = all phases + adjustments">
              {PAID_PHASES.map((name) => `${PHASES[name].word} ${usd(bill.micros[name])}`)}
              {`adjustments ${usd(bill.adjusted_micros)}`}
            </Formula>
          }
        >
          for {many(bill.attempts.length, 'attempt')}
        </Tile>
        <Tile
          label="On demand"
          value={<Money micros={bill.on_demand_micros} {...soft} />}
          by={<Formula text="on demand = one setup and the useful time at the on-demand price; unmeasured time at the price paid">{[usd(bill.on_demand_micros)]}</Formula>}
        >
          the same useful work
        </Tile>
        <Tile
          label={bill.saved_micros < 0 ? 'Overpaid' : 'Saved'}
          value={<Money micros={Math.abs(bill.saved_micros)} {...soft} />}
          by={
            <Formula text="saved = on demand − paid">
              {[`${usd(bill.on_demand_micros)} − ${usd(bill.paid_micros)} = ${usd(bill.saved_micros)}`]}
            </Formula>
          }
        >
          {bill.on_demand_micros > 0 ? `${share(Math.abs(bill.saved_micros), bill.on_demand_micros)} of on demand` : 'no useful work yet'}
        </Tile>
        <Tile
          label="Wasted"
          value={<Money micros={bill.wasted_micros} {...soft} />}
          by={
            <Formula text="wasted = setup + restore + stalled + lost">
              {PAID_PHASES.filter((name) => name !== 'useful' && name !== 'unmeasured').map((name) => `${PHASES[name].word} ${usd(bill.micros[name])}`)}
            </Formula>
          }
        >
          {share(bill.wasted_micros, bill.paid_micros) ?? '–'} of paid
        </Tile>
        <Tile
          label="Goodput"
          value={bill.goodput == null ? <Absent why="not measured yet" /> : `${Math.round(100 * bill.goodput)} %`}
          by={
            <Formula text="goodput = useful time ÷ measured time with nodes">
              {[`${bill.ms.useful / 1000} s ÷ ${(bill.provisioned_ms - bill.ms.unmeasured) / 1000} s`, `lost steps: ${bill.lost_steps}`]}
            </Formula>
          }
        >
          of the measured time with nodes
        </Tile>
      </dl>
      <Compared bill={bill} />
      <OverTime bill={bill} />
      {bill.charges && <ChargesTable bill={bill} charges={bill.charges} />}
      {bill.simulated && <p className="note">~ simulated price: nothing is billed.</p>}
      {bill.is_price_estimate && <p className="note">~ price unknown: estimated high.</p>}
    </>
  )
}

function OverTime({ bill }: { bill: Bill }) {
  const { clock } = usePreferences()
  const [zoomed, zoom] = useZoom()
  const whole = extentOf(lanesOf(bill.attempts, []))
  return whole && <CumulativeCostChart bill={bill} part={partWords(zoomed, clock)} window={zoomed ?? whole} zoom={zoom} />
}

export function Formula({ text, children }: { text: string; children: (string | string[])[] | string }) {
  return (
    <>
      <strong>{text}</strong>
      {[children].flat(2).map((fact) => (
        <span key={fact}>{fact}</span>
      ))}
    </>
  )
}

const BAR = 22
const LABEL = 84

/** Two bars on one scale; the gap between them is the saving. */
function Compared({ bill }: { bill: Bill }) {
  const [box, width] = useWidth<HTMLElement>()
  const whole = Math.max(bill.paid_micros, bill.on_demand_micros, 1)
  const names = PAID_PHASES.filter((name) => name !== 'unmeasured' || bill.micros.unmeasured)
  const part = (micros: number) => (Math.max(0, width - LABEL) * Math.max(0, micros)) / whole
  const saved = bill.saved_micros > 0 && part(bill.saved_micros)
  let x = LABEL
  return (
    <figure className="compared" ref={box}>
      <figcaption>
        <PhaseLegend phases={names} />
        {saved && <span>Dotted: saved</span>}
      </figcaption>
      <svg width={width} height={2 * BAR + 8} role="img" aria-label={`paid ${exactMoney(bill.paid_micros)}, on demand ${exactMoney(bill.on_demand_micros)}`}>
        <text className="tick" x={0} y={BAR - 7}>Paid</text>
        {names.map((name) => {
          const from = x
          x += part(bill.micros[name])
          return (
            <rect key={name} className={`phase ${name}`} x={from} y={0} width={x - from} height={BAR}>
              <title>{`${PHASES[name].word} ${exactMoney(bill.micros[name])}`}</title>
            </rect>
          )
        })}
        {saved && (
          <rect className="gap" x={LABEL + part(bill.paid_micros)} y={0} width={saved} height={BAR}>
            <title>{`saved ${exactMoney(bill.saved_micros)}`}</title>
          </rect>
        )}
        <text className="tick" x={0} y={2 * BAR}>On demand</text>
        <rect className="money-demand-bar" x={LABEL} y={BAR + 6} width={part(bill.on_demand_micros)} height={BAR} />
      </svg>
    </figure>
  )
}
