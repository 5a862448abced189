"""Expected cost to the end of a job, by backward induction over ticks, for every state it can be in. Pure.

State: ticks until the deadline, work that is left, whether spot nodes are available, the class of age of that state, and what is held.
In each tick, the chance that availability changes depends on its age (`beliefs.py`); a choice is allowed if on-demand nodes still meet the deadline
after its worst outcome. A start adds `changeover` to the work that is left. The table holds, for every state and everything that may be held
during a tick, the expected cost of all that follows the tick, so that a policy adds the price of the tick and takes the least.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.planning.beliefs import (
    AGE_LIMITS_S,
    MAX_CHANCE,
    USUAL_LOSS,
    USUAL_RETURN,
    chances,
)
from holdfast.domain.planning.situation import ROUNDING, Held, Indices
from holdfast.domain.planning.traces import Numbers

Costs: TypeAlias = NDArray[np.float32]

STEP_S: Final = 600.0
"""The step of tables; ticks that are shorter share one.
A lower value makes tables large; a higher value sees losses too late."""
FACTOR: Final = 1.25
"""Ratio of neighbouring multipliers for which there are tables.
A lower value computes more tables; a higher value takes one place for another."""
EXTENT: Final = 6
"""Number of factors up and down from the usual rates.
A lower value takes a calm place for a usual one; a higher value computes more tables."""
MAX_TABLE_BYTES: Final = 512 * 2**20
"""Memory of tables that are kept.
A lower value computes them again; a higher value is missed elsewhere."""
NEVER: Final = np.float32(1e9)
"""Cost of a state from which the deadline cannot be met, in USD."""
_CLASSES: Final = len(AGE_LIMITS_S) + 1
_UP: Final = 1


@dataclass(frozen=True, slots=True)
class TableTerms:
    """What a table depends on beside the multipliers."""

    tick_s: float
    changeover_s: float
    on_demand_start_s: float
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float

    @property
    def step_s(self) -> float:
        """The step of the table, a whole number of ticks."""
        return self.tick_s * max(1, round(STEP_S / self.tick_s))


class CostTables:
    """Tables for the multipliers of places, made when they are needed and kept."""

    def __init__(self, terms: TableTerms) -> None:
        self.terms = terms
        self._steps = self._work_steps = 0
        self._tables: OrderedDict[tuple[int, int], Costs] = OrderedDict()

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

    def key(self, loss: Numbers, returns: Numbers) -> Indices:
        """A number for the table of each pair of multipliers."""
        return _exponent(loss) * (2 * EXTENT + 1) + _exponent(returns)

    def after(
        self,
        keys: Indices,
        time_s: Numbers,
        available: Indices,
        age_class: Indices,
        held: Held,
        work_s: Numbers,
    ) -> Costs:
        """The expected cost of all that follows a tick with something held, in USD.

        `time_s`: until the deadline, before the tick. `work_s`: left after the tick, with the rest of a changeover.
        """
        step_s = self.terms.step_s
        steps = np.minimum((time_s / step_s + ROUNDING).astype(np.intp), self._steps)
        place = np.maximum(work_s / step_s, 0.0)
        low = np.minimum(place.astype(np.intp), self._work_steps - 1)
        part = (place - low).astype(np.float32)
        found = np.empty(len(keys), np.float32)
        for key in np.unique(keys):
            rows = keys == key
            costs = self._table(int(key))[:, :, :, held]
            at = steps[rows], available[rows], age_class[rows]
            below, above = costs[(*at, low[rows])], costs[(*at, low[rows] + 1)]
            found[rows] = below + (above - below) * part[rows]
        return found

    def _table(self, key: int) -> Costs:
        pair = divmod(key, 2 * EXTENT + 1)
        table = self._tables.get(pair)
        if table is None:
            loss, returns = (FACTOR ** (exponent - EXTENT) for exponent in pair)
            table = cost_table(self.terms, loss, returns, self._steps, self._work_steps)
            self._tables[pair] = table
            while len(self._tables) * table.nbytes > MAX_TABLE_BYTES and len(self._tables) > 1:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(pair)
        return table


def _exponent(multiplier: Numbers) -> Indices:
    exponent = np.rint(np.log(multiplier) / np.log(FACTOR))
    return (np.clip(exponent, -EXTENT, EXTENT) + EXTENT).astype(np.intp)


def cost_table(
    terms: TableTerms, loss: float, returns: float, steps: int, work_steps: int
) -> Costs:
    """Expected costs in USD: (steps left, available, class of age, held, steps of work left after the step)."""
    step_s = terms.step_s
    usual = np.stack([chances(USUAL_RETURN, step_s) * returns, chances(USUAL_LOSS, step_s) * loss])
    change = np.minimum(usual, MAX_CHANCE).astype(np.float32)
    widths = np.diff([0.0, *AGE_LIMITS_S])
    ages = np.append(np.minimum(1.0, step_s / widths), 0.0).astype(np.float32)
    after = np.empty((steps + 1, 2, _CLASSES, 3, work_steps + 1), np.float32)
    after[0], after[0, ..., 0] = NEVER, 0.0
    best = after[0].copy()
    for left in range(1, steps + 1):
        after[left] = _expect(best, change, ages)
        best = _choose(after[left], terms, left)
    return after


def _expect(best: Costs, change: Costs, ages: Costs) -> Costs:
    """The expected least cost after a step, by the state before it."""
    older = np.concatenate([best[:, 1:], best[:, -1:]], axis=1)
    grown = ages[:, None, None]
    stays = (1 - grown) * best + grown * older
    changes = best[::-1, :1].copy()
    # Spot nodes are lost with the change.
    changes[_UP, :, Held.SPOT] = changes[_UP, :, Held.NOTHING]
    chance = change[:, :, None, None]
    return (1 - chance) * stays + chance * changes


def _choose(after: Costs, terms: TableTerms, left: int) -> Costs:
    """The least cost from the beginning of a step, with `left` steps until the deadline."""
    work = np.arange(after.shape[-1])
    spot_start = terms.changeover_s / terms.step_s
    on_demand_start = terms.on_demand_start_s / terms.step_s
    hour = terms.step_s / 3600
    spot, on_demand = terms.spot_usd_per_hour * hour, terms.on_demand_usd_per_hour * hour

    def fits(left_work: Numbers, steps: int) -> NDArray[np.bool_]:
        return np.ceil(left_work + on_demand_start - ROUNDING) <= steps

    idle = np.where(fits(work, left - 1), after[:, :, Held.NOTHING], NEVER)
    costs = {}
    for held, price, start in ((Held.SPOT, spot, spot_start), (Held.ON_DEMAND, on_demand, on_demand_start)):
        for begins in (False, True):
            more = start if begins else 0.0
            if held == Held.SPOT:
                allowed = fits(work - 1 + more, left - 1)
            else:
                allowed = np.ceil(work + more - ROUNDING) <= left
            cost = price + _moved(after[:, :, held], more - 1)
            costs[held, begins] = np.where(allowed, cost, NEVER)
            if held == Held.SPOT:
                costs[held, begins][1 - _UP] = NEVER
    best = np.empty_like(after)
    for held in Held:
        options = [costs[each, each != held] for each in (Held.SPOT, Held.ON_DEMAND)]
        best[:, :, held] = np.minimum(idle, np.minimum(*options))
    best[..., 0] = 0.0
    return np.minimum(best, NEVER)


def _moved(costs: Costs, by: float) -> Costs:
    """Costs at `by` more steps of work, interpolated."""
    last = costs.shape[-1] - 1
    at = np.arange(last + 1) + by
    low = np.floor(at + ROUNDING).astype(np.intp)
    part = np.maximum(at - low, 0.0).astype(np.float32)
    below, above = np.clip(low, 0, last), np.clip(low + 1, 0, last)
    moved = costs[..., below] * (1 - part) + costs[..., above] * part
    moved[..., at > last] = NEVER
    return moved
