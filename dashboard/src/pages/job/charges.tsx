// What a job costs beside its nodes: storage, requests, egress and disks.

import type { Bill, Charge, Charges } from '../../api/types'
import { exactMoney } from '../../format'
import { Absent, Money } from '../../ui/number'
import { Table, type Column } from '../../ui/table'

export function ChargesTable({ bill, charges }: { bill: Bill; charges: Charges }) {
  const soft = { simulated: bill.simulated, estimate: bill.is_price_estimate }
  if (charges.lines.length === 0) return charges.warning && <Warning text={charges.warning} />
  return (
    <>
      {charges.warning && <Warning text={charges.warning} />}
      <Table name="charges" caption="Beside the nodes" columns={COLUMNS} rows={charges.lines} keyOf={(one) => `${one.category} ${one.item} ${one.place}`}
        foot={<p className="note">
          Whole bill <Money micros={bill.total_micros ?? bill.paid_micros} {...soft} />: nodes {exactMoney(bill.paid_micros)} and {exactMoney(charges.micros)} beside them
          {charges.has_unpriced && ', without what has no known price'}. Limits and budgets count the nodes. Prices: {charges.prices_source}, as of {charges.prices_as_of}.
        </p>} />
    </>
  )
}

const Warning = ({ text }: { text: string }) => <p className="note warn">⚠ {text}</p>

/** Dollars to the micro-dollar: most prices of units are fractions of a cent. */
const fine = (micros: number): string => `$${(micros / 1e6).toFixed(6)}`

const COLUMNS: Column<Charge>[] = [
  { name: 'category', title: 'For', value: (one) => one.category, cell: (one) => one.category },
  { name: 'item', title: 'Item', value: (one) => one.item, cell: (one) => one.item },
  { name: 'place', title: 'Where', value: (one) => one.place, cell: (one) => one.place ?? <Absent why="region unknown" /> },
  { name: 'quantity', title: 'Quantity', numeric: true, value: (one) => Number(one.quantity), cell: (one) => one.quantity },
  { name: 'unit', title: 'Unit', value: (one) => one.unit, cell: (one) => one.unit },
  { name: 'unit_usd', title: 'Price', numeric: true, by: 'price of one unit', value: (one) => usdOf(one.unit_micros), cell: (one) => moneyOf(one.unit_micros) },
  { name: 'amount_usd', title: 'Amount', numeric: true, by: 'amount = quantity × price, rounded down once', value: (one) => usdOf(one.micros), cell: (one) => moneyOf(one.micros) },
]

const usdOf = (micros: number | null): number | null => (micros === null ? null : micros / 1e6)
const moneyOf = (micros: number | null) => (micros === null ? <Absent why="no price known" /> : fine(micros))
