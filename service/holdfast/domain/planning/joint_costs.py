"""Expected cost to the end of a job that may run in several places, as `cost_to_go.py` for one. Pure.

State: steps until the deadline, work that is left, for each place whether spot nodes are available and whether that is young or old, what is held,
and where it was last. Places change independently of each other in the model.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np

from holdfast.domain.planning.beliefs import (
    AGE_LIMITS_S,
    MAX_CHANCE,
    USUAL_LOSS,
    USUAL_RETURN,
    chances,
)
from holdfast.domain.planning.cost_to_go import NEVER, Costs, moved
from holdfast.domain.planning.situation import ROUNDING, Indices
from holdfast.domain.planning.traces import Flags, Numbers

MAX_PLACES: Final = 3
"""Places in a table. A lower value forgets where else nodes are; a higher value takes minutes for a table."""
STEP_S: Final = 1200.0
"""The step of tables. A lower value makes tables large; a higher value sees losses too late."""
OLD_S: Final = AGE_LIMITS_S[1]
"""The age from which a state is old."""
FACTOR: Final = 1.6
"""Ratio of neighbouring multipliers for which there are tables."""
EXTENT: Final = 2
"""Number of factors up and down from the usual rates."""
PRICE_FACTOR: Final = 1.1
"""Ratio of neighbouring prices for which there are tables."""
MAX_TABLES: Final = 32
"""Tables that are kept. A lower value computes them again; a higher value takes memory, some 40 MB for each."""
_STATES: Final = 4
"""Of a place: unavailable and young, unavailable and old, available and young, available and old."""


@dataclass(frozen=True, slots=True)
class JointTerms:
    """What a table depends on beside places, multipliers and prices."""

    tick_s: float
    changeover_s: float
    on_demand_start_s: float
    on_demand_usd_per_hour: float
    egress_usd: float
    """Cost of a start in another region than the last one."""

    @property
    def step_s(self) -> float:
        """The step of the table, a whole number of ticks."""
        return self.tick_s * max(1, round(STEP_S / self.tick_s))


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a table: exponents of the multipliers and prices, and a number for each region."""

    loss: tuple[int, ...]
    returns: tuple[int, ...]
    price: tuple[int, ...]
    region: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of places."""
        return len(self.price)

    def usd(self, place: int) -> float:
        """The price of a place in USD per hour."""
        return float(PRICE_FACTOR ** self.price[place])


def multiplier_exponents(multipliers: Numbers) -> Indices:
    """The exponents of multipliers for which there are tables."""
    exponents = np.rint(np.log(multipliers) / np.log(FACTOR))
    return np.clip(exponents, -EXTENT, EXTENT).astype(np.intp)


def price_exponents(price: Numbers) -> Indices:
    """The exponents of prices for which there are tables."""
    return np.rint(np.log(price) / np.log(PRICE_FACTOR)).astype(np.intp)


def place_states(available: Flags, age_s: Numbers) -> Indices:
    """The number of the state of each place."""
    return 2 * available.astype(np.intp) + (age_s >= OLD_S)


class JointTables:
    """Tables for places, made when they are needed and kept.

    What is held has a number: with n places, p is a spot node in place p, n + p none and 2n + p an on-demand node, after place p.
    """

    def __init__(self, terms: JointTerms) -> None:
        self.terms = terms
        self._steps = self._work_steps = 0
        self._tables: OrderedDict[Places, Costs] = OrderedDict()

    def require(self, time_s: float, work_s: float) -> None:
        """Make tables reach to this time until a deadline and this much work."""
        step_s = self.terms.step_s
        steps = int(time_s / step_s) + 2
        starts_s = self.terms.changeover_s + self.terms.on_demand_start_s
        work_steps = int(np.ceil((work_s + starts_s) / step_s)) + 3
        if steps > self._steps or work_steps > self._work_steps:
            self._steps = max(steps, self._steps)
            self._work_steps = max(work_steps, self._work_steps)
            self._tables.clear()

    def after(
        self, places: Places, time_s: Numbers, states: Indices, held: Indices, work_s: Numbers
    ) -> Numbers:
        """The expected cost of all that follows a tick, in USD.

        `time_s`: until the deadline, before the tick. `states`: of the places, (rows, places). `held`: the number of what is held.
        `work_s`: left after the tick, with the rest of a changeover.
        """
        table = self._table(places)
        steps = np.minimum((time_s / self.terms.step_s + ROUNDING).astype(np.intp), self._steps)
        at = np.maximum(work_s / self.terms.step_s, 0.0)
        low = np.minimum(at.astype(np.intp), self._work_steps - 1)
        index = (steps, *states.T, held)
        below, above = table[(*index, low)], table[(*index, low + 1)]
        return below + (above - below) * (at - low)

    def _table(self, places: Places) -> Costs:
        table = self._tables.get(places)
        if table is None:
            table = _Induction(self.terms, places, self._work_steps).run(self._steps)
            self._tables[places] = table
            if len(self._tables) > MAX_TABLES:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(places)
        return table


class _Induction:
    """Backward induction for one table."""

    def __init__(self, terms: JointTerms, places: Places, work_steps: int) -> None:
        self._terms, self._places = terms, places
        self._work = np.arange(work_steps + 1)
        self._count = places.count
        self._kernels = [
            _kernel(FACTOR**loss, FACTOR**returns, terms.step_s)
            for loss, returns in zip(places.loss, places.returns, strict=True)
        ]
        self._hours = terms.step_s / 3600
        self._start = terms.changeover_s / terms.step_s
        self._on_demand_start = terms.on_demand_start_s / terms.step_s

    def run(self, steps: int) -> Costs:
        """The table: (steps left, state of each place, what is held, steps of work left after the step)."""
        shape = (*[_STATES] * self._count, 3 * self._count, len(self._work))
        after = np.empty((steps + 1, *shape), np.float32)
        after[0] = NEVER
        after[0, ..., 0] = 0.0
        best = after[0].copy()
        for left in range(1, steps + 1):
            after[left] = self._expect(best)
            best = self._choose(after[left], left)
        return after

    def _expect(self, best: Costs) -> Costs:
        """The expected least cost after a step, by the state before it."""
        costs = best.copy()
        for place in range(self._count):
            down = [slice(None)] * self._count
            down[place] = slice(0, 2)
            costs[(*down, place)] = best[(*down, self._count + place)]
        for place, kernel in enumerate(self._kernels):
            costs = np.moveaxis(np.tensordot(kernel, costs, axes=(1, place)), 0, place)
        return costs

    def _fits(self, work: Numbers, steps: int) -> Flags:
        return np.ceil(work + self._on_demand_start - ROUNDING) <= steps

    def _choose(self, after: Costs, left: int) -> Costs:
        """The least cost from the beginning of a step, with `left` steps until the deadline."""
        count, work = self._count, self._work
        usd = self._terms.on_demand_usd_per_hour * self._hours
        idle = np.where(self._fits(work, left - 1), after[..., count : 2 * count, :], NEVER)
        on_demand = after[..., 2 * count :, :]
        stays = np.where(work <= left, usd + moved(on_demand, -1.0), NEVER)
        fits = np.ceil(work + self._on_demand_start - ROUNDING) <= left
        starts = np.where(fits, usd + moved(on_demand, self._on_demand_start - 1), NEVER)
        spot_stays, spot_starts = (self._spot(after, left, start) for start in (0.0, self._start))
        best = np.empty_like(after)
        for last in range(count):
            others = idle[..., last, :]
            for place in range(count):
                is_move = self._places.region[place] != self._places.region[last]
                cost = spot_starts[..., place, :] + (self._terms.egress_usd if is_move else 0.0)
                others = np.minimum(others, cost)
            new = np.minimum(others, starts[..., last, :])
            best[..., last, :] = np.minimum(new, spot_stays[..., last, :])
            best[..., count + last, :] = new
            best[..., 2 * count + last, :] = np.minimum(others, stays[..., last, :])
        best[..., 0] = 0.0
        return np.minimum(best, NEVER)

    def _spot(self, after: Costs, left: int, start: float) -> Costs:
        """The cost of a step on spot nodes in each place, where they are available."""
        costs = moved(after[..., : self._count, :], start - 1)
        costs[..., ~self._fits(self._work - 1 + start, left - 1)] = NEVER
        for place in range(self._count):
            down = [slice(None)] * self._count
            down[place] = slice(0, 2)
            costs[..., place, :] += np.float32(self._places.usd(place) * self._hours)
            costs[(*down, place)] = NEVER
        return costs


def _kernel(loss: float, returns: float, step_s: float) -> Costs:
    """Chances of the next state of a place, (state, next state)."""
    young_s, old = OLD_S, len(AGE_LIMITS_S)
    widths = np.diff([0.0, *AGE_LIMITS_S])[:2]
    kernel = np.zeros((_STATES, _STATES))
    for state, (usual, multiplier) in enumerate(((USUAL_RETURN, returns), (USUAL_LOSS, loss))):
        each = np.minimum(chances(usual, step_s) * multiplier, MAX_CHANCE)
        # Young states are more often at the begin of their class; old ones are as the classes that last.
        weights = widths * np.cumprod([1.0, (1 - each[0]) ** (widths[0] / step_s)])
        change = (float(weights @ each[:2] / weights.sum()), float(each[2:old].mean() + each[old]) / 2)
        ageing = min(1.0, step_s / young_s)
        young, other = 2 * state, 2 * (1 - state)
        kernel[young, other] = change[0]
        kernel[young, young] = (1 - change[0]) * (1 - ageing)
        kernel[young, young + 1] = (1 - change[0]) * ageing
        kernel[young + 1, other] = change[1]
        kernel[young + 1, young + 1] = 1 - change[1]
    return kernel.astype(np.float32)
