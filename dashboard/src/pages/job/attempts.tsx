// The attempts and node groups of a job, as a swimlane chart and as tables.

import { useSearchParams } from 'react-router'
import type { Attempt, Bill, JobEvent } from '../../api/types'
import { extentOf, lanesOf, type Window } from '../../charts/attempt-lanes'
import { BandItems } from '../../charts/capacity-bands'
import { groupLanesOf } from '../../charts/group-lanes'
import type { Band } from '../../charts/plan-bands'
import { GroupLegend, MarkLegend, PhaseLegend, Swimlane } from '../../charts/swimlane'
import { elapsed, exactMoney, moment, type Clock } from '../../format'
import { usePreferences } from '../../preferences'
import { Placement } from '../../ui/badge'
import { Money } from '../../ui/number'
import { Table, type Column } from '../../ui/table'
import { causeWords, lossKind, PAID_PHASES, PHASE_NAMES, PHASES } from '../../phases'
import { GroupTables } from './groups'

/** The zoomed time window, kept in the address; null for the whole job. */
export function useZoom(): [Window | null, (window: Window | null) => void] {
  const [params, setParams] = useSearchParams()
  const from = Number(params.get('from'))
  const to = Number(params.get('to'))
  const zoom = (window: Window | null) =>
    setParams(
      (now) => {
        for (const name of ['from', 'to'] as const)
          if (window) now.set(name, String(Math.round(window[name])))
          else now.delete(name)
        return now
      },
      { replace: true },
    )
  return [to > from && from > 0 ? { from, to } : null, zoom]
}

/** The zoomed window, for the accessible names of charts. */
export const partWords = (window: Window | null, clock: Clock): string =>
  window ? ` from ${moment(window.from, clock)} to ${moment(window.to, clock)}` : ''

export function AttemptsView({ bill, events, choices }: { bill: Bill; events: JobEvent[]; choices: Band[] }) {
  const { clock } = usePreferences()
  const [zoomed, zoom] = useZoom()
  const { attempts } = bill
  const lanes = lanesOf(attempts, events)
  const groups = groupLanesOf(bill)
  const whole = extentOf(lanes)
  if (!whole) return null
  const names = PHASE_NAMES.filter((name) => name !== 'unmeasured' || attempts.some((one) => one.ms.unmeasured))
  const phase = (name: (typeof PHASE_NAMES)[number], of: Attempt) => (name === 'waiting' ? of.waiting_ms : of.ms[name])
  const columns: Column<Attempt>[] = [
    { name: 'attempt', title: 'Attempt', cell: (one) => <ZoomTo attempt={one} events={events} zoom={zoom} />, value: (one) => one.attempt },
    { name: 'zone', title: 'Where', cell: (one) => <Where attempt={one} />, value: (one) => one.zone },
    ...names.map((name) => ({
      name: `${name}_s`,
      title: PHASES[name].word,
      by: `${PHASES[name].word.toLowerCase()}: ${PHASES[name].means}; h:mm:ss`,
      numeric: true,
      cell: (one: Attempt) => <span className={phase(name, one) ? '' : 'quiet'}>{elapsed(phase(name, one))}</span>,
      value: (one: Attempt) => phase(name, one) / 1000,
    })),
    {
      name: 'paid_usd', title: 'Paid', numeric: true, value: (one) => one.paid_micros / 1e6,
      by: 'paid = all phases except waiting, at the price in force, before adjustments',
      cell: (one) => (
        <Money micros={one.paid_micros} simulated={one.simulated} estimate={one.is_price_estimate}
          by={`= ${PAID_PHASES.map((name) => `${PHASES[name].word.toLowerCase()} ${exactMoney(one.micros[name])}`).join(' + ')}`} />
      ),
    },
    {
      name: 'ended_by', title: 'Ended by', value: (one) => (one.drill ? 'drill' : one.cause) ?? (one.ended_at ? 'job ended' : 'running'),
      cell: (one) => (one.cause ? `✕ ${lostFirst(one)}${causeWords(one.cause, one.drill)}` : one.ended_at ? 'job ended' : '● running'),
    },
  ]
  return (
    <>
      <div className="row spread">
        <div className="row">
          <PhaseLegend phases={names} />
          <MarkLegend lanes={lanes} />
          {/* Waiting is in the legend of the phases. */}
          {choices.length > 0 && <ul className="key" aria-label="Legend of the plan"><BandItems bands={choices.filter(({ capacity }) => capacity !== 'waiting')} /></ul>}
        </div>
        {zoomed ? (
          <button type="button" onClick={() => zoom(null)}>
            Show all (now {moment(zoomed.from, clock).slice(11, 19)} to {moment(zoomed.to, clock).slice(11, 19)})
          </button>
        ) : (
          <small>Drag to zoom all charts</small>
        )}
      </div>
      {groups.length > 0 && <GroupLegend lanes={groups} />}
      <Swimlane lanes={lanes} groups={groups} choices={choices} part={partWords(zoomed, clock)} window={zoomed ?? whole} zoom={zoom} />
      <Table name="attempts" caption="Phases and cost of each attempt" columns={columns} rows={attempts} keyOf={(one) => String(one.attempt)} />
      {groups.length > 0 && <GroupTables bill={bill} />}
    </>
  )
}

/** The group whose loss ended an attempt; empty for a job without groups, and for other ends. */
const lostFirst = ({ cause, groups }: Attempt): string =>
  cause && groups?.[0]?.name && lossKind(cause) === 'preemption' ? `${groups[0].name}: ` : ''

/** Where the nodes stand; with the name and the cost of each node group. */
function Where({ attempt }: { attempt: Attempt }) {
  const named = (attempt.groups ?? []).filter((group) => group.name)
  if (named.length === 0) return <Placement zone={attempt.zone} nodes={attempt.nodes} />
  return (
    <>
      {named.map((group) => (
        <div key={group.name}>
          {group.name}: {group.zone ? <Placement zone={group.zone} nodes={group.nodes} /> : 'not there'}{' '}
          <Money micros={group.paid_micros} simulated={attempt.simulated} estimate={attempt.is_price_estimate} />
        </div>
      ))}
    </>
  )
}

function ZoomTo({ attempt, events, zoom }: { attempt: Attempt; events: JobEvent[]; zoom: (window: Window) => void }) {
  const window = extentOf(lanesOf([attempt], events))
  return (
    <button type="button" className="link" onClick={() => window && zoom(window)} aria-label={`Zoom to attempt ${attempt.attempt}`}>
      {attempt.attempt}
    </button>
  )
}
