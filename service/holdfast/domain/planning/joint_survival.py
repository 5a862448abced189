"""Our policy `holdfast` for jobs that may run in several places. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from holdfast.domain.planning.cost_to_go import NEVER
from holdfast.domain.planning.joint_costs import (
    MAX_PLACES,
    JointTables,
    JointTerms,
    Places,
    multiplier_exponents,
    place_states,
    price_exponents,
)
from holdfast.domain.planning.situation import (
    HOUR_S,
    Beliefs,
    Choice,
    Codes,
    Held,
    Indices,
    Reason,
    Situation,
    is_idle_safe,
    is_spot_safe,
)
from holdfast.domain.planning.traces import Numbers

LEAST_GAIN: Final = 0.1
"""What waiting for a tick has to save, as a share of the tick's price.
A lower value waits because of the rounding of tables; a higher value takes nodes that will soon be lost."""
_NOT_ALLOWED: Final = float(NEVER) * 2


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that share a table."""

    key: Places
    places: Indices
    """The places that the table distinguishes, (rows, places of the table)."""
    rows: Indices


class JointSurvival:
    """Keeps the tables of all terms that it has met."""

    def __init__(self) -> None:
        self._tables: dict[JointTerms, JointTables] = {}

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        rows, places = situation.available.shape
        # One column for each place, then no node, and an on-demand node.
        costs = np.full((rows, places + 2), _NOT_ALLOWED)
        beliefs = situation.recall()
        chosen = _places_of_tables(situation, beliefs)
        for tables, members in self._tables_of(situation):
            for group in _groups(situation, beliefs, chosen, members):
                _fill(costs, situation, beliefs, tables, group)
        stands = situation.held == Held.SPOT
        own = stands[:, None] & (np.arange(places) == situation.place[:, None])
        stay_safe = is_spot_safe(situation, is_start=False)
        start_safe = is_spot_safe(situation, is_start=True)
        safe = np.where(own, stay_safe[:, None], situation.available & start_safe[:, None])
        costs[:, :places][~safe] = _NOT_ALLOWED
        costs[~is_idle_safe(situation), places] = _NOT_ALLOWED
        # On-demand nodes are always allowed: nothing better is left when they come too late.
        np.minimum(costs[:, -1], float(NEVER), out=costs[:, -1])
        option = costs.argmin(axis=1)
        holds = np.full(rows, Held.SPOT, np.int8)
        holds[option == places], holds[option > places] = Held.NOTHING, Held.ON_DEMAND
        place = np.where(option < places, option, situation.place)
        return Choice(holds, place, _reasons(situation, costs, holds, place))

    def _tables_of(self, situation: Situation) -> Iterator[tuple[JointTables, Indices]]:
        """The tables of each changeover, and the rows that have it."""
        for changeover_s in np.unique(situation.changeover_s).tolist():
            terms = JointTerms(
                situation.tick_s,
                changeover_s,
                changeover_s + situation.on_demand_wait_s,
                situation.on_demand_price,
                situation.egress_usd,
            )
            tables = self._tables.setdefault(terms, JointTables(terms))
            members = np.flatnonzero(situation.changeover_s == changeover_s)
            left_s = situation.deadline_s - situation.elapsed_s
            tables.require(
                float(left_s[members].max()),
                float((left_s - situation.remaining_s)[members].max()),
            )
            yield tables, members


def _places_of_tables(situation: Situation, beliefs: Beliefs) -> Indices:
    """The places that tables distinguish, in ascending order, (rows, at most `MAX_PLACES`).

    Those are the cheapest of an expected life, and that of the node that is held.
    """
    rows, places = situation.available.shape
    if places <= MAX_PLACES:
        return np.broadcast_to(np.arange(places), (rows, places))
    share = beliefs.returns / (beliefs.returns + beliefs.loss)
    rank = situation.spot_price / share[:, :places]
    here = np.arange(places) == situation.place[:, None]
    rank[here] = -1.0
    return np.sort(rank.argsort(axis=1, kind="stable")[:, :MAX_PLACES], axis=1)


def _groups(
    situation: Situation, beliefs: Beliefs, chosen: Indices, members: Indices
) -> Iterator[_Group]:
    """Rows that share a table."""
    rows = members[:, None]
    at, count = chosen[members], chosen.shape[1]
    keys = np.concatenate(
        [
            multiplier_exponents(beliefs.loss[rows, at]),
            multiplier_exponents(beliefs.returns[rows, at]),
            price_exponents(situation.spot_price[rows, at]),
            situation.region[rows, at],
        ],
        axis=1,
    )
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    for number, key in enumerate(distinct.tolist()):
        parts = [tuple(key[each : each + count]) for each in range(0, len(key), count)]
        rows = members[group.reshape(-1) == number]
        yield _Group(Places(*parts), chosen[rows], rows)


def _fill(
    costs: Numbers, situation: Situation, beliefs: Beliefs, tables: JointTables, group: _Group
) -> None:
    """Write the expected costs until the end of rows, for all that may be held in the next tick."""
    key, rows, chosen = group.key, group.rows, group.places
    terms, step_s = tables.terms, tables.terms.step_s
    hours = step_s / HOUR_S
    across = rows[:, None]
    states = place_states(situation.available[across, chosen], beliefs.age_s[across, chosen])
    time_s = (situation.deadline_s - situation.elapsed_s)[rows]
    slack_s, warm_s = time_s - situation.remaining_s[rows], situation.warm_up_s[rows]
    here = chosen == situation.place[rows][:, None]
    last = np.where(here.any(axis=1), here.argmax(axis=1), 0)
    stands = (situation.held == Held.SPOT)[rows]
    for number in range(key.count):
        place = chosen[:, number]
        own = stands & (place == situation.place[rows])
        after_s = slack_s - np.where(own, warm_s, terms.changeover_s)
        held = np.full(len(rows), number)
        cost = tables.after(key, time_s, states, held, after_s)
        cost += situation.spot_price[rows, place] * hours
        cost += np.where(own, 0.0, situation.move_usd[rows, place])
        costs[rows, place] = cost
    nothing = tables.after(key, time_s, states, key.count + last, slack_s - step_s)
    least_usd = situation.spot_price[rows[:, None], chosen].min(axis=1) * hours
    costs[rows, -2] = nothing + LEAST_GAIN * least_usd
    stays = (situation.held == Held.ON_DEMAND)[rows]
    after_s = slack_s - np.where(stays, warm_s, terms.on_demand_start_s)
    after = tables.after(key, time_s, states, 2 * key.count + last, after_s)
    costs[rows, -1] = after + terms.on_demand_usd_per_hour * hours


def _reasons(situation: Situation, costs: Numbers, holds: Codes, place: Indices) -> Codes:
    on_demand, spot = holds == Held.ON_DEMAND, holds == Held.SPOT
    stands = situation.held == Held.SPOT
    reasons = np.full(len(holds), Reason.WAIT_FOR_SPOT, np.int8)
    reasons[spot] = Reason.SPOT_IS_AVAILABLE
    reasons[spot & stands] = Reason.CHEAPER_PLACE
    reasons[spot & stands & (place == situation.place)] = Reason.SPOT_STANDS
    reasons[on_demand] = Reason.LEAST_EXPECTED_COST
    reasons[on_demand & (costs[:, :-1] >= _NOT_ALLOWED).all(axis=1)] = Reason.SAFETY_NET
    reasons[on_demand & (situation.held == Held.ON_DEMAND)] = Reason.ON_DEMAND_STANDS
    return reasons
