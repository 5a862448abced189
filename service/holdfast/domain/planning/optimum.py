"""The least cost of a job with the whole recording known, by dynamic programming. Pure.

It bounds what any policy can reach. For each tick, from the last to the first, it keeps the least cost of the rest for everything that may be held and
all amounts of work that may be left, in units that divide the tick and the changeover.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from holdfast.domain.planning.replay import RecordedMarkets, Runs, Terms, Windows, replay
from holdfast.domain.planning.situation import (
    HOUR_S,
    ROUNDING,
    Choice,
    Codes,
    Held,
    Indices,
    Situation,
)
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


def replay_optimum(market: RecordedMarkets, windows: Windows, terms: Terms) -> Runs:
    """Run each window with the choices of least cost; without any end in time, on demand."""
    ticks = int(windows.deadline_s.max() / market.gap_s + ROUNDING)
    holds = np.full((ticks, len(windows.market)), Held.ON_DEMAND, np.int8)
    places = np.zeros(holds.shape, np.intp)
    for row in range(len(windows.market)):
        for tick, node in enumerate(_problem(market, windows, terms, row).path()):
            holds[tick, row], places[tick, row] = node.held, max(node.place, 0)
    return replay(_Recorded(holds, places), market, windows, terms)


class _Recorded:
    """Follows recorded choices, (ticks, rows)."""

    name = NAME

    def __init__(self, holds: Codes, places: Indices) -> None:
        self._holds, self._places = holds, places

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        tick = int(situation.elapsed_s[0] / situation.tick_s + ROUNDING)
        if tick >= len(self._holds):
            holds = np.full(len(situation.held), Held.ON_DEMAND, np.int8)
            return Choice(holds, situation.place, np.zeros_like(holds))
        rows = situation.row
        holds = self._holds[tick, rows]
        return Choice(holds, self._places[tick, rows], np.zeros_like(holds))


def _problem(market: RecordedMarkets, windows: Windows, terms: Terms, row: int) -> _Problem:
    number, start = int(windows.market[row]), int(windows.start[row])
    ticks = int(windows.deadline_s[row] / market.gap_s + ROUNDING)
    last = market.available.shape[2] - 1
    when = np.minimum(np.arange(start, start + ticks + 1), last)
    available = market.available[number][:, when] & (np.arange(start, start + ticks + 1) <= last)
    return _Problem(
        ticks=ticks,
        available=available,
        price=market.price[number][:, when],
        regions=market.region[number].tolist(),
        terms=terms,
        work_s=windows.work_s,
        progress=_progress(market.gap_s, float(windows.changeover_s[row]), terms, windows.work_s),
    )


def _progress(gap_s: float, changeover_s: float, terms: Terms, work_s: float) -> _Progress:
    millis = (round(1000 * each) for each in (gap_s, changeover_s, terms.on_demand_wait_s))
    unit_s = max(math.gcd(*millis) / 1000, work_s / MAX_UNITS)
    return _Progress(gap_s, changeover_s, terms.on_demand_wait_s, unit_s)


class _Problem:
    """One window."""

    def __init__(
        self,
        *,
        ticks: int,
        available: Flags,
        price: Numbers,
        regions: list[int],
        terms: Terms,
        work_s: float,
        progress: _Progress,
    ) -> None:
        """`available`, `price`: (places, ticks of the window and one more)."""
        self._ticks = ticks
        self._available, self._price = available, price
        self._terms, self._progress = terms, progress
        # Without a price for moves, the last place does not matter.
        self._regions = regions if terms.egress_usd else [0] * len(regions)
        self._units = math.ceil(work_s / progress.unit_s - ROUNDING)
        self._lost_units = math.ceil(terms.lost_work_s / progress.unit_s - ROUNDING)
        self._tick_units = int(progress.gap_s / progress.unit_s + ROUNDING)
        self._nodes = [*self._all_nodes()]
        self._index = {node: index for index, node in enumerate(self._nodes)}

    def path(self) -> Iterator[_Node]:
        """What is held after the choice of each tick; nothing if no path ends in time."""
        kept = self._solve()
        node, work = _Node(Held.NOTHING, -1, 0), self._units
        for tick in range(self._ticks):
            if work <= 0:
                return
            options = [*self._options(node, tick, kept[tick + 1], slice(work, work + 1))]
            cost, step = min(options, key=lambda option: float(option[0][0]))
            if not np.isfinite(cost[0]):
                return
            yield step.after
            node, lost = self._outcome(step, tick)
            work -= step.units
            work += lost if work > 0 else 0

    def _solve(self) -> list[_Costs]:
        """The least costs at the beginning of each tick, from the first on."""
        kept = [_Costs(0, np.full((len(self._nodes), 0), np.inf))]
        for tick in range(self._ticks - 1, -1, -1):
            low = max(1, self._units - tick * self._tick_units)
            high = min(self._units, (self._ticks - tick) * self._tick_units)
            best = np.full((len(self._nodes), max(0, high + 1 - low)), np.inf)
            if low <= high:
                for index, node in enumerate(self._nodes):
                    if node.held != Held.SPOT or self._available[node.place, tick]:
                        for cost, _ in self._options(node, tick, kept[-1], slice(low, high + 1)):
                            np.minimum(best[index], cost, out=best[index])
            kept.append(_Costs(low, best))
        return kept[::-1]

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

    def _options(
        self, node: _Node, tick: int, after: _Costs, work: slice
    ) -> Iterator[tuple[Numbers, _Step]]:
        """What may be chosen, with the cost of the rest for each amount of work that is left."""
        last = self._last_place(node.place)
        nothing = _Step(0, 0.0, _Node(Held.NOTHING, last, 0))
        yield self._cost(nothing, 0.0, tick, after, work), nothing
        age = node.age if node.held == Held.ON_DEMAND else 0
        step = self._progress.step(Held.ON_DEMAND, last, age)
        yield self._cost(step, self._terms.on_demand_usd_per_hour, tick, after, work), step
        for place in range(len(self._regions)):
            if self._available[place, tick]:
                stays = node.held == Held.SPOT and node.place == place
                step = self._progress.step(Held.SPOT, place, node.age if stays else 0)
                cost = self._cost(step, float(self._price[place, tick]), tick, after, work)
                if node.place >= 0 and self._regions[place] != self._regions[node.place]:
                    cost = cost + self._terms.egress_usd
                yield cost, step

    def _outcome(self, step: _Step, tick: int) -> tuple[_Node, int]:
        """What is held at the beginning of the next tick, and the units of progress that are lost."""
        node = step.after
        if node.held == Held.SPOT and not self._available[node.place, tick + 1]:
            return _Node(Held.NOTHING, self._last_place(node.place), 0), min(
                self._lost_units, step.units
            )
        return node, 0

    def _cost(self, step: _Step, price: float, tick: int, after: _Costs, work: slice) -> Numbers:
        node, lost = self._outcome(step, tick)
        rest = after.at(self._index[node], work.start - step.units, work.stop - step.units, lost)
        return rest + price * step.paid_s / HOUR_S


@dataclass(frozen=True, slots=True)
class _Costs:
    """The least costs from a tick on, (nodes, units of work left from `low` on).

    Below 1 unit nothing is left to do; above those kept, the deadline is missed.
    """

    low: int
    costs: Numbers

    def at(self, node: int, start: int, stop: int, lost: int) -> Numbers:
        """Those for a range of units, of which `lost` are added where work is left."""
        found = np.full(stop - start, np.inf)
        found[: max(0, 1 - start)] = 0.0
        begin = max(start, 1)
        first, end = begin + lost - self.low, min(stop + lost - self.low, self.costs.shape[1])
        assert first >= 0 or begin >= stop, "work that is left is at least that of the fastest path"
        if end > first:
            found[begin - start : begin - start + end - first] = self.costs[node, first:end]
        return found
