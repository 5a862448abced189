"""The policy `holdfast`: the least expected cost, given how long spot nodes last. Pure.

It compares, in each tick, what spot nodes, on-demand nodes and none would cost until the end (`cost_to_go.py`), with the multipliers of the place
from its own history (`beliefs.py`). The exact safety net decides what is allowed: a choice after whose worst outcome on-demand
nodes would miss the deadline is never made.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from holdfast.domain.planning.cost_to_go import NEVER, Costs, CostTables, TableTerms
from holdfast.domain.planning.joint_survival import JointSurvival
from holdfast.domain.planning.policies import SpotOnly, Threshold
from holdfast.domain.planning.situation import (
    HOUR_S,
    Choice,
    Codes,
    Held,
    Indices,
    Reason,
    Situation,
    cheapest_place,
    is_idle_safe,
    is_spot_safe,
    of_place,
)
from holdfast.domain.planning.traces import Flags, Numbers

_NOT_ALLOWED: Final = NEVER * 2


class Survival:
    """Keeps the tables of all terms that it has met."""

    name = "holdfast"

    def __init__(self) -> None:
        self._tables: dict[TableTerms, CostTables] = {}
        self._joint = JointSurvival()
        # Tables that see spot nodes at all times are no better than this rule without.
        self._blind = Threshold()
        self._endless = SpotOnly()

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        if np.isinf(situation.deadline_s).all():
            # To wait costs nothing, and spot nodes cost less.
            return self._endless.choose(situation)
        if not situation.sees_all:
            return self._blind.choose(situation)
        if situation.available.shape[1] > 1:
            return self._joint.choose(situation)
        place, is_there = cheapest_place(situation)
        stays = situation.held == Held.SPOT
        place = np.where(stays, situation.place, place)
        available = is_there | stays
        costs = self._costs(situation, place, available)
        costs[Held.NOTHING][~is_idle_safe(situation)] = _NOT_ALLOWED
        spot_safe = available & is_spot_safe(situation, is_start=~stays)
        costs[Held.SPOT][~spot_safe] = _NOT_ALLOWED
        # On-demand nodes are always allowed: nothing better is left when they come too late.
        np.minimum(costs[Held.ON_DEMAND], NEVER, out=costs[Held.ON_DEMAND])
        holds = costs.argmin(axis=0).astype(np.int8)
        return Choice(holds, place, _reasons(situation, holds, costs, stays))

    def _costs(self, situation: Situation, place: Indices, available: Flags) -> Costs:
        """The expected cost until the end for each row and all that may be held, (3, rows)."""
        costs = np.empty((3, len(place)), np.float32)
        beliefs = situation.recall()
        age = of_place(beliefs.age_s, place)
        loss, returns = of_place(beliefs.loss, place), of_place(beliefs.returns, place)
        price = of_place(situation.spot_price, place)
        time_s, remaining_s = situation.deadline_s - situation.elapsed_s, situation.remaining_s
        for tables, rows in self._tables_of(situation, price):
            terms = tables.terms
            states = tables.rows(
                loss[rows], returns[rows], time_s[rows], available[rows], age[rows]
            )
            for held, start_s, usd in (
                (Held.NOTHING, 0.0, 0.0),
                (Held.SPOT, terms.changeover_s, terms.spot_usd_per_hour),
                (Held.ON_DEMAND, terms.on_demand_start_s, terms.on_demand_usd_per_hour),
            ):
                continues = situation.held[rows] == held
                start = np.where(continues, situation.warm_up_s[rows], start_s)
                work_s = remaining_s[rows] + start
                # A job that ends within the step pays for its ticks alone.
                paid_s = np.minimum(situation.ticks(work_s) * terms.tick_s, terms.step_s)
                done_s = terms.step_s if held else 0.0
                after = tables.after(states, held, work_s - done_s)
                costs[held, rows] = after + (paid_s * (usd / HOUR_S)).astype(np.float32)
        return costs

    def _tables_of(
        self, situation: Situation, price: Numbers
    ) -> list[tuple[CostTables, Flags | slice]]:
        """The tables of each group of rows with equal terms."""
        changeovers, prices = _distinct(situation.changeover_s), _distinct(price)
        found: list[tuple[CostTables, Flags | slice]] = []
        for changeover_s in changeovers.tolist():
            for usd in prices.tolist():
                rows: Flags | slice = slice(None)
                if len(changeovers) * len(prices) > 1:
                    chosen = (situation.changeover_s == changeover_s) & (price == usd)
                    if not chosen.any():
                        continue
                    rows = chosen
                terms = TableTerms(
                    situation.tick_s,
                    changeover_s,
                    changeover_s + situation.on_demand_wait_s,
                    usd,
                    situation.on_demand_price,
                )
                tables = self._tables.setdefault(terms, CostTables(terms))
                tables.require(
                    float((situation.deadline_s - situation.elapsed_s).max()),
                    float(situation.remaining_s.max()),
                )
                found.append((tables, rows))
        return found


def _distinct(values: Numbers) -> Numbers:
    first = values[:1]
    return first if (values == first).all() else np.unique(values)


def _reasons(situation: Situation, holds: Codes, costs: Costs, stays: Flags) -> Codes:
    spot, on_demand = holds == Held.SPOT, holds == Held.ON_DEMAND
    is_forced = (
        on_demand & (costs[Held.NOTHING] >= _NOT_ALLOWED) & (costs[Held.SPOT] >= _NOT_ALLOWED)
    )
    is_forced &= situation.held != Held.ON_DEMAND
    return np.select(
        [
            spot & stays,
            spot,
            is_forced,
            on_demand & (situation.held == Held.ON_DEMAND),
            on_demand,
        ],
        [
            np.int8(Reason.SPOT_STANDS),
            np.int8(Reason.SPOT_IS_AVAILABLE),
            np.int8(Reason.SAFETY_NET),
            np.int8(Reason.ON_DEMAND_STANDS),
            np.int8(Reason.LEAST_EXPECTED_COST),
        ],
        np.int8(Reason.WAIT_FOR_SPOT),
    ).astype(np.int8)
