"""The least cost of a job for somebody who knows the whole recording, by dynamic programming. Pure.

It bounds what any policy can reach. For each tick, from the last to the first, it keeps the least cost of the rest for everything that may be held and
all amounts of work that may be left, in units that divide the tick and the changeover.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from holdfast.domain.planning.replay import HOUR_S, Market, Runs, Terms, Windows
from holdfast.domain.planning.situation import ROUNDING, Held
from holdfast.domain.planning.traces import Flags, Numbers

NAME: Final = "optimal"
MAX_UNITS: Final = 20_000
"""Units of work at most; progress is rounded down to units.
A lower value overstates the least cost; a higher value takes long where tick and changeover have no common divisor."""


@dataclass(frozen=True, slots=True)
class _Node:
    """Something that is held at the beginning of a tick."""

    held: Held
    place: int
    """The place of the spot node, or else the last one; -1 before the first."""
    age: int
    """Ticks since its start, up to that without a rest of the changeover; 0 if nothing is held."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a choice leads to within a tick."""

    units: int
    """Units of work that are done."""
    paid_s: float
    after: _Node


@dataclass(frozen=True, slots=True)
class _Progress:
    """How much a node does in the ticks after its start."""

    gap_s: float
    changeover_s: float
    wait_s: float
    unit_s: float

    @property
    def last_age(self) -> int:
        """The age from which on it does as much as possible, at least 1."""
        return max(1, math.ceil((self.changeover_s + self.wait_s) / self.gap_s - ROUNDING))

    def step(self, held: Held, place: int, age: int) -> _Step:
        """A tick with a node that is `age` ticks old."""
        start_s = age * self.gap_s
        wait_s = self.wait_s if held == Held.ON_DEMAND else 0.0
        idle_s = min(self.gap_s, max(0.0, wait_s - start_s))
        done_s = min(self.gap_s, max(0.0, start_s + self.gap_s - wait_s - self.changeover_s))
        after = _Node(held, place, min(age + 1, self.last_age))
        return _Step(int(done_s / self.unit_s + ROUNDING), self.gap_s - idle_s, after)


def least_costs(market: Market, windows: Windows, terms: Terms) -> Runs:
    """The least cost of each window; of `Runs`, only that is known.

    It is infinite where the deadline cannot be met.
    """
    runs = Runs.of(len(windows.market))
    for row in range(len(windows.market)):
        runs.cost_usd[row] = _least_cost(market, windows, terms, row)
    return runs


def _least_cost(market: Market, windows: Windows, terms: Terms, row: int) -> float:
    number, start = int(windows.market[row]), int(windows.start[row])
    ticks = int(windows.deadline_s[row] / market.gap_s + ROUNDING)
    last = market.available.shape[2] - 1
    when = np.minimum(np.arange(start, start + ticks + 1), last)
    available = market.available[number][:, when] & (np.arange(start, start + ticks + 1) <= last)
    problem = _Problem(
        available,
        market.price[number][:, when],
        market.region[number].tolist(),
        terms,
        windows.work_s,
        _progress(market.gap_s, float(windows.changeover_s[row]), terms, windows.work_s),
    )
    return problem.solve(ticks)


def _progress(gap_s: float, changeover_s: float, terms: Terms, work_s: float) -> _Progress:
    millis = (round(1000 * each) for each in (gap_s, changeover_s, terms.on_demand_wait_s))
    unit_s = max(math.gcd(*millis) / 1000, work_s / MAX_UNITS)
    return _Progress(gap_s, changeover_s, terms.on_demand_wait_s, unit_s)


class _Problem:
    """One window."""

    def __init__(
        self,
        available: Flags,
        price: Numbers,
        regions: list[int],
        terms: Terms,
        work_s: float,
        progress: _Progress,
    ) -> None:
        """`available`, `price`: (places, ticks of the window and one more)."""
        self._available, self._price = available, price
        self._terms, self._progress = terms, progress
        # Without a price for moves, the last place does not matter.
        self._regions = regions if terms.egress_usd else [0] * len(regions)
        self._units = math.ceil(work_s / progress.unit_s - ROUNDING)
        self._lost_units = math.ceil(terms.lost_work_s / progress.unit_s - ROUNDING)
        self._tick_units = int(progress.gap_s / progress.unit_s + ROUNDING)
        self._nodes = [*self._all_nodes()]
        self._index = {node: index for index, node in enumerate(self._nodes)}

    def solve(self, ticks: int) -> float:
        """The least cost."""
        # Work below 0 is done; above, the deadline is missed.
        pad = self._tick_units
        after = np.full((len(self._nodes), pad + self._units + self._lost_units + 1), np.inf)
        after[:, : pad + 1] = 0.0
        best = after.copy()
        for tick in range(ticks - 1, -1, -1):
            low = max(1, self._units - tick * self._tick_units)
            high = min(self._units, (ticks - tick) * self._tick_units)
            if low <= high:
                rows = slice(pad + low, pad + high + 1)
                for index, node in enumerate(self._nodes):
                    if node.held != Held.SPOT or self._available[node.place, tick]:
                        best[index, rows] = self._least(node, tick, after, rows)
            after, best = best, after
        return float(after[self._index[_Node(Held.NOTHING, -1, 0)], pad + self._units])

    def _all_nodes(self) -> Iterator[_Node]:
        ages = range(1, self._progress.last_age + 1)
        for last in (-1, *sorted({self._regions.index(each) for each in self._regions})):
            yield _Node(Held.NOTHING, last, 0)
            for age in ages:
                yield _Node(Held.ON_DEMAND, last, age)
        for place in range(len(self._regions)):
            for age in ages:
                yield _Node(Held.SPOT, place, age)

    def _last_place(self, place: int) -> int:
        """The first place of the same region."""
        return place if place < 0 else self._regions.index(self._regions[place])

    def _least(self, node: _Node, tick: int, after: Numbers, rows: slice) -> Numbers:
        last = self._last_place(node.place)
        least = after[self._index[_Node(Held.NOTHING, last, 0)], rows].copy()
        age = node.age if node.held == Held.ON_DEMAND else 0
        step = self._progress.step(Held.ON_DEMAND, last, age)
        price = self._terms.on_demand_usd_per_hour
        np.minimum(least, self._cost(step, price, tick, after, rows), out=least)
        for place in range(len(self._regions)):
            if self._available[place, tick]:
                stays = node.held == Held.SPOT and node.place == place
                step = self._progress.step(Held.SPOT, place, node.age if stays else 0)
                cost = self._cost(step, float(self._price[place, tick]), tick, after, rows)
                if node.place >= 0 and self._regions[place] != self._regions[node.place]:
                    cost += self._terms.egress_usd
                np.minimum(least, cost, out=least)
        return least

    def _cost(
        self, step: _Step, price: float, tick: int, after: Numbers, rows: slice
    ) -> Numbers:
        node, lost = step.after, 0
        if node.held == Held.SPOT and not self._available[node.place, tick + 1]:
            node = _Node(Held.NOTHING, self._last_place(node.place), 0)
            lost = min(self._lost_units, step.units)
        by = lost - step.units
        rest = after[self._index[node], rows.start + by : rows.stop + by]
        if lost:  # Work that was done in the last tick is not lost.
            done = after[self._index[node], rows.start - step.units : rows.stop - step.units] == 0.0
            rest = np.where(done, 0.0, rest)
        return rest + price * step.paid_s / HOUR_S
