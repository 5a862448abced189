"""Expected cost to the end of a job in several places; see `cost_to_go.py`. Pure.

State: time until the deadline, slack (that time less the work that is left), for each place whether spot nodes are available and the class of age of that,
what is held, and where it was last. Places change independently of each other in the model. A tick without nodes takes its length from
the slack, a start takes `changeover`, and training takes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from holdfast.domain.planning.beliefs import (
    AGE_LIMITS_S,
    CHANCE_TICK_S,
    MAX_CHANCE,
    USUAL_LOSS,
    USUAL_RETURN,
)
from holdfast.domain.planning.cost_to_go import NEVER, Costs
from holdfast.domain.planning.situation import HOUR_S, ROUNDING, Indices
from holdfast.domain.planning.traces import Flags, Numbers

MAX_PLACES: Final = 3
"""Places in a table. A lower value forgets where else nodes are; a higher value takes minutes for a table."""
STEP_S: Final = 600.0
"""The step of tables. A lower value makes tables large; a higher value sees losses too late."""
STRIDE: Final = 4
"""Steps between two times that are kept; what lies between is interpolated.
A lower value makes tables large; a higher value loses detail shortly before the end."""
UNIT_S: Final = 300.0
"""The unit of slack at most, unless there is very much of it."""
MAX_UNITS: Final = 160
"""Units of slack in a table at most. A lower value is coarse where slack is short; a higher value makes tables large."""
MAX_SLACK_S: Final = 12 * 3600.0
"""Slack that makes a difference. A lower value buys on-demand nodes too early; a higher value makes tables coarse."""
LIMITS_S: Final = {1: AGE_LIMITS_S, 2: AGE_LIMITS_S, 3: (1800.0, 10800.0)}
"""Upper ends of all classes of age but the last, by the number of places."""
FACTOR: Final = 1.6
"""Ratio of neighbouring multipliers for which there are tables."""
EXTENT: Final = 2
"""Number of factors up and down from the usual rates."""
PRICE_FACTOR: Final = 1.1
"""Ratio of neighbouring prices for which there are tables."""
LONGEST_S: Final = 86400.0
"""Age up to which states count for the mean of a class. A lower value takes old states for young ones; a higher value the other way round."""
MAX_TABLES: Final = 24
"""Tables that are kept. A lower value computes them again; a higher value takes memory, up to 60 MB for each."""


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
    """The places of a table: exponents of multipliers and prices, and numbers of regions."""

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
    clipped: Indices = np.clip(exponents, -EXTENT, EXTENT).astype(np.intp)
    return clipped


def price_exponents(price: Numbers) -> Indices:
    """The exponents of prices for which there are tables."""
    exponents: Indices = np.rint(np.log(price) / np.log(PRICE_FACTOR)).astype(np.intp)
    return exponents


def place_states(available: Flags, age_s: Numbers) -> Indices:
    """The number of the state of each place, (rows, places)."""
    limits = LIMITS_S[available.shape[1]]
    classes = np.searchsorted(np.array(limits), age_s, side="right")
    return available * (len(limits) + 1) + classes


class JointTables:
    """Tables for places, made when they are needed and kept.

    What is held has a number: with n places, p is a spot node in place p, n + p none and 2n + p an on-demand node, after place p.
    """

    def __init__(self, terms: JointTerms) -> None:
        self.terms = terms
        self._time_s = self._slack_s = 0.0
        self._tables: OrderedDict[Places, tuple[_Grid, Costs]] = OrderedDict()

    def require(self, time_s: float, slack_s: float) -> None:
        """Make tables reach to this time until a deadline and this slack."""
        if time_s > self._time_s or min(slack_s, MAX_SLACK_S) > self._slack_s:
            self._time_s = max(time_s, self._time_s)
            self._slack_s = max(min(slack_s, MAX_SLACK_S), self._slack_s)
            self._tables.clear()

    def after(
        self, places: Places, time_s: Numbers, states: Indices, held: Indices, slack_s: Numbers
    ) -> Numbers:
        """The expected cost of all that follows a tick, in USD.

        `time_s`: until the deadline, before the tick. `states`: of the places, (rows, places). `held`: the number of what is held.
        `slack_s`: after the tick, and after the rest of a changeover.
        """
        grid, table = self._table(places)
        steps = np.clip(time_s / (grid.step_s * STRIDE), 0.0, len(table) - 1.0)
        slack = np.clip(slack_s / grid.unit_s, 0.0, grid.units - 1.0)
        early = np.minimum(steps.astype(np.intp), len(table) - 2)
        low = np.minimum(slack.astype(np.intp), grid.units - 2)
        later, more = steps - early, slack - low
        found = np.zeros(len(time_s))
        for time, time_part in ((early, 1 - later), (early + 1, later)):
            for unit, unit_part in ((low, 1 - more), (low + 1, more)):
                found += time_part * unit_part * table[(time, *states.T, held, unit)]
        return np.where(slack_s < -ROUNDING, float(NEVER), found)

    def _table(self, places: Places) -> tuple[_Grid, Costs]:
        table = self._tables.get(places)
        if table is None:
            grid = _Grid.of(self.terms, self._slack_s)
            steps = int(np.ceil(self._time_s / (grid.step_s * STRIDE))) * STRIDE + STRIDE
            table = grid, _Induction(self.terms, places, grid).run(steps)
            self._tables[places] = table
            if len(self._tables) > MAX_TABLES:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(places)
        return table


@dataclass(frozen=True, slots=True)
class _Grid:
    """The steps of time and the units of slack of a table."""

    step_s: float
    unit_s: float
    units: int

    @classmethod
    def of(cls, terms: JointTerms, slack_s: float) -> _Grid:
        """Units that divide the start of on-demand nodes, so that the safety net lies on one."""
        start_s = terms.on_demand_start_s
        unit_s = start_s / max(1, np.ceil(start_s / UNIT_S)) if start_s else UNIT_S
        unit_s = max(unit_s, slack_s / MAX_UNITS)
        return cls(terms.step_s, unit_s, int(np.ceil(slack_s / unit_s)) + 2)


class _Induction:
    """Backward induction for one table."""

    def __init__(self, terms: JointTerms, places: Places, grid: _Grid) -> None:
        self._terms, self._places, self._grid = terms, places, grid
        self._count = places.count
        limits_s = LIMITS_S[places.count]
        self._classes = len(limits_s) + 1
        usual = [
            _class_chances(each, limits_s, terms.step_s) for each in (USUAL_RETURN, USUAL_LOSS)
        ]
        self._changes = [
            _changes(usual, FACTOR**returns, FACTOR**loss)
            for loss, returns in zip(places.loss, places.returns, strict=True)
        ]
        widths = np.diff([0.0, *limits_s])
        self._ageing = np.append(np.minimum(1.0, terms.step_s / widths), 0.0).astype(np.float32)
        self._hours = terms.step_s / HOUR_S
        self._slack_s = np.arange(grid.units) * grid.unit_s
        self._margin_s = self._slack_s - terms.on_demand_start_s + ROUNDING
        """Slack beyond what a start of on-demand nodes takes."""

    def run(self, steps: int) -> Costs:
        """The table of expected costs.

        (multiples of `STRIDE` steps left, state of each place, what is held, units of slack after the step)
        """
        shape = (*[2 * self._classes] * self._count, 3 * self._count, self._grid.units)
        kept = np.empty((steps // STRIDE + 1, *shape), np.float32)
        best = np.zeros(shape, np.float32)
        kept[0] = 0.0
        for left in range(1, steps + 1):
            after = self._expect(best)
            if left % STRIDE == 0:
                kept[left // STRIDE] = after
            best = self._choose(after)
            # More slack than time: the work is done.
            best[..., self._slack_s >= left * self._grid.step_s] = 0.0
        return kept

    def _expect(self, best: Costs) -> Costs:
        """The expected least cost after a step, by the state before it."""
        costs = best.copy()
        for place in range(self._count):
            down = self._where_down(place)
            costs[down][..., place, :] = best[down][..., self._count + place, :]
        for place, change in enumerate(self._changes):
            costs = self._expect_place(costs, place, change)
        return costs

    def _expect_place(self, costs: Costs, place: int, change: Costs) -> Costs:
        """The expected costs after the state of one place has changed, or has become older.

        A product of matrices would do the same in threads, which take ten times the CPU time for matrices of this size.
        """
        count = self._classes
        expected = np.empty_like(costs)
        before, after = np.moveaxis(costs, place, 0), np.moveaxis(expected, place, 0)
        across = (slice(None), *[None] * (costs.ndim - 1))
        for available in range(2):
            young, other = available * count, (1 - available) * count
            own = slice(young, young + count)
            changes = change[available]
            older = (1 - changes) * self._ageing
            np.multiply(before[own], (1 - changes - older)[across], out=after[own])
            after[own][:-1] += before[own][1:] * older[:-1][across]
            after[own] += before[other] * changes[across]
        return expected

    def _where_down(self, place: int) -> tuple[slice, ...]:
        """The states in which a place has no spot nodes."""
        index = [slice(None)] * self._count
        index[place] = slice(0, self._classes)
        return tuple(index)

    def _choose(self, after: Costs) -> Costs:
        """The least cost from the beginning of a step."""
        count, terms = self._count, self._terms
        usd = np.float32(terms.on_demand_usd_per_hour * self._hours)
        idle = self._less(after[..., count : 2 * count, :], self._grid.step_s)
        idle[..., self._margin_s < self._grid.step_s] = NEVER
        stays = usd + after[..., 2 * count :, :]
        starts = usd + self._less(after[..., 2 * count :, :], terms.on_demand_start_s)
        starts[..., self._margin_s < 0] = NEVER
        spot_stays = self._spot(after, 0.0)
        spot_starts = self._spot(after, terms.changeover_s)
        best = np.empty_like(after)
        for last in range(count):
            others = idle[..., last, :]
            for place in range(count):
                is_move = self._places.region[place] != self._places.region[last]
                egress = np.float32(terms.egress_usd if is_move else 0.0)
                others = np.minimum(others, spot_starts[..., place, :] + egress)
            new = np.minimum(others, starts[..., last, :])
            best[..., last, :] = np.minimum(new, spot_stays[..., last, :])
            best[..., count + last, :] = new
            best[..., 2 * count + last, :] = np.minimum(others, stays[..., last, :])
        np.minimum(best, NEVER, out=best)
        return best

    def _spot(self, after: Costs, start_s: float) -> Costs:
        """The cost of a step on spot nodes in each place, where they are available."""
        costs = self._less(after[..., : self._count, :], start_s)
        costs[..., self._margin_s < start_s] = NEVER
        for place in range(self._count):
            costs[..., place, :] += np.float32(self._places.usd(place) * self._hours)
            costs[self._where_down(place)][..., place, :] = NEVER
        return costs

    def _less(self, costs: Costs, slack_s: float) -> Costs:
        """Costs at less slack, interpolated."""
        units = slack_s / self._grid.unit_s
        whole = min(int(np.ceil(units - ROUNDING)), self._grid.units)
        if not whole:
            return costs.copy()
        part = np.float32(whole - units)
        moved = np.full_like(costs, NEVER)
        below, above = costs[..., :-whole], costs[..., 1 : costs.shape[-1] - whole + 1]
        moved[..., whole:] = below + (above - below) * part
        return moved


def _changes(usual: Sequence[Numbers], returns: float, loss: float) -> Costs:
    """Chances of a change within a step, (available, class of age)."""
    chances = np.stack([usual[0] * returns, usual[1] * loss])
    return np.minimum(chances, MAX_CHANCE).astype(np.float32)


def _class_chances(usual: tuple[float, ...], limits_s: tuple[float, ...], step_s: float) -> Numbers:
    """Chances of a change within a step, in other classes of age than the usual ones.

    Ages count as often as states reach them.
    """
    ages = np.arange(0.0, LONGEST_S, CHANCE_TICK_S)
    rates = -np.log1p(-np.array(usual))[np.searchsorted(np.array(AGE_LIMITS_S), ages, side="right")]
    lasts = np.exp(-np.cumsum(rates))
    classes = np.searchsorted(np.array(limits_s), ages, side="right")
    mean = np.bincount(classes, rates * lasts) / np.bincount(classes, lasts)
    return 1 - np.exp(-mean * step_s / CHANCE_TICK_S)
