// The attempts of a job: as lanes, and as a table of the same.

import { useSearchParams } from 'react-router'
import type { Attempt, Fact } from '../../api/types'
import { extentOf, lanesOf, type Window } from '../../charts/lanes'
import { MarkKey, PhaseKey, Swimlane } from '../../charts/swimlane'
import { duration, exactMoney, moment, type Clockwork } from '../../format'
import { usePreferences } from '../../preferences'
import { Place } from '../../ui/badge'
import { Money } from '../../ui/figure'
import { Table, type Column } from '../../ui/table'
import { causeWords, PAID_PHASES, PHASE_NAMES, PHASES } from '../../vocabulary'

/** What part of the job's time is looked at, as the address has it; null for all of it. */
export function useZoom(): [Window | null, (window: Window | null) => void] {
  const [words, setWords] = useSearchParams()
  const from = Number(words.get('from'))
  const to = Number(words.get('to'))
  const zoom = (window: Window | null) =>
    setWords(
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

/** From when to when, for the names of charts that show a part of the time. */
export const partWords = (window: Window | null, clock: Clockwork): string =>
  window ? ` from ${moment(window.from, clock)} to ${moment(window.to, clock)}` : ''

export function Timeline({ attempts, facts }: { attempts: Attempt[]; facts: Fact[] }) {
  const { clock } = usePreferences()
  const [zoomed, zoom] = useZoom()
  const lanes = lanesOf(attempts, facts)
  const whole = extentOf(lanes)
  if (!whole) return null
  const names = PHASE_NAMES.filter((name) => name !== 'unmeasured' || attempts.some((one) => one.ms.unmeasured))
  const phase = (name: (typeof PHASE_NAMES)[number], of: Attempt) => (name === 'waiting' ? of.waiting_ms : of.ms[name])
  const columns: Column<Attempt>[] = [
    { name: 'attempt', title: 'Attempt', cell: (one) => <ZoomTo attempt={one} facts={facts} zoom={zoom} />, value: (one) => one.attempt },
    { name: 'zone', title: 'Where', cell: (one) => <Place zone={one.zone} nodes={one.nodes} />, value: (one) => one.zone },
    ...names.map((name) => ({
      name: `${name}_s`,
      title: PHASES[name].word,
      by: `${PHASES[name].word.toLowerCase()}: ${PHASES[name].means}`,
      numeric: true,
      cell: (one: Attempt) => (phase(name, one) ? duration(phase(name, one)) : <span className="quiet">0</span>),
      value: (one: Attempt) => phase(name, one) / 1000,
    })),
    {
      name: 'paid_usd', title: 'Paid', numeric: true, value: (one) => one.paid_micros / 1e6,
      by: 'paid = all phases but waiting, at the price of each moment, before the rules of providers',
      cell: (one) => (
        <Money micros={one.paid_micros} simulated={one.simulated} estimate={one.is_price_estimate}
          by={`= ${PAID_PHASES.map((name) => `${PHASES[name].word.toLowerCase()} ${exactMoney(one.micros[name])}`).join(' + ')}`} />
      ),
    },
    {
      name: 'ended_by', title: 'Ended by', value: (one) => one.cause ?? (one.ended_at ? 'the job’s end' : 'still there'),
      cell: (one) => (one.cause ? `✕ ${causeWords(one.cause)}` : one.ended_at ? 'the job’s end' : '● still there'),
    },
  ]
  return (
    <>
      <div className="row spread">
        <div className="row">
          <PhaseKey phases={names} />
          <MarkKey lanes={lanes} />
        </div>
        {zoomed ? (
          <button type="button" onClick={() => zoom(null)}>
            Show all, not only {moment(zoomed.from, clock).slice(11, 19)} to {moment(zoomed.to, clock).slice(11, 19)}
          </button>
        ) : (
          <small>Drag across to zoom all charts</small>
        )}
      </div>
      <Swimlane lanes={lanes} part={partWords(zoomed, clock)} window={zoomed ?? whole} zoom={zoom} />
      <Table name="attempts" caption="What each attempt took" columns={columns} rows={attempts} keyOf={(one) => String(one.attempt)} />
    </>
  )
}

function ZoomTo({ attempt, facts, zoom }: { attempt: Attempt; facts: Fact[]; zoom: (window: Window) => void }) {
  const window = extentOf(lanesOf([attempt], facts))
  return (
    <button type="button" className="link" onClick={() => window && zoom(window)} aria-label={`Zoom to attempt ${attempt.attempt}`}>
      {attempt.attempt}
    </button>
  )
}
