"""Expected cost to the end of a job for every state, by backward induction. Pure.

State: ticks until the deadline, work that is left, whether spot nodes are available, the class of age of that state, and what is held.
In each tick, the chance that availability changes depends on its age (`beliefs.py`); a choice is allowed if on-demand nodes still meet the deadline
after its worst outcome. A start adds `changeover` to the work that is left. The table holds, for every state and everything that may be held
during a tick, the expected cost of all that follows the tick, so that a policy adds the price of the tick and takes the least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.planning.beliefs import (
    AGE_LIMITS_S,
    MAX_CHANCE,
    USUAL_LOSS,
    USUAL_RETURN,
    age_class,
    chances,
)
from holdfast.domain.planning.situation import HOUR_S, ROUNDING, Held, Indices
from holdfast.domain.planning.traces import Flags, Numbers

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
PAIRS: Final = (2 * EXTENT + 1) ** 2
"""Number of tables at most."""
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
    def ticks(self) -> int:
        """Ticks of a step of the table."""
        return max(1, round(STEP_S / self.tick_s))

    @property
    def step_s(self) -> float:
        """The step of the table."""
        return self.tick_s * self.ticks


class CostTables:
    """Tables for the multipliers of places, made when they are needed and kept."""

    def __init__(self, terms: TableTerms) -> None:
        self.terms = terms
        self._steps = self._work_steps = 0
        self._is_made = np.zeros(PAIRS, np.bool_)
        self._costs = np.empty((0, 0, 2, _CLASSES, 3, 0), np.float32)

    def require(self, time_s: float, work_s: float) -> None:
        """Make tables reach to this time until a deadline and this much work."""
        step_s = self.terms.step_s
        steps = int(time_s / step_s) + 2
        starts_s = self.terms.changeover_s + self.terms.on_demand_start_s
        work_steps = int(np.ceil((work_s + starts_s) / step_s)) + 3
        if steps > self._steps or work_steps > self._work_steps:
            self._steps = max(steps, self._steps)
            self._work_steps = max(work_steps, self._work_steps)
            shape = (PAIRS, self._steps + 1, 2, _CLASSES, 3, self._work_steps + 1)
            # The system provides memory for those tables that are written.
            self._costs = np.empty(shape, np.float32)
            self._is_made[:] = False

    def rows(
        self, loss: Numbers, returns: Numbers, time_s: Numbers, available: Flags, age: Numbers
    ) -> Indices:
        """Where the costs of states begin in the tables, made as far as they are missing.

        `loss`, `returns`: multipliers. `time_s`: until the deadline, before the tick. `age`: of the state of the place, in seconds.
        """
        pair = _exponent(loss) * (2 * EXTENT + 1) + _exponent(returns)
        for each in np.flatnonzero(np.bincount(pair, minlength=PAIRS) * ~self._is_made):
            loss_exponent, returns_exponent = divmod(int(each), 2 * EXTENT + 1)
            self._costs[each] = cost_table(
                self.terms,
                loss=FACTOR ** (loss_exponent - EXTENT),
                returns=FACTOR ** (returns_exponent - EXTENT),
                steps=self._steps,
                work_steps=self._work_steps,
            )
            self._is_made[each] = True
        steps = np.clip((time_s / self.terms.step_s + ROUNDING).astype(np.intp), 0, self._steps)
        state = ((pair * (self._steps + 1) + steps) * 2 + available) * _CLASSES + age_class(age)
        begin: Indices = state * (3 * (self._work_steps + 1))
        return begin

    def after(self, rows: Indices, held: Held, work_s: Numbers) -> Costs:
        """The expected cost of all that follows a tick with something held, in USD.

        `rows`: see there. `work_s`: left after the tick, with the rest of a changeover.
        """
        place = np.maximum(work_s * (1 / self.terms.step_s), 0.0)
        # The last ticks are paid as a whole: otherwise, it would seem cheap to leave a rest for later.
        whole = np.ceil(place * self.terms.ticks - ROUNDING) / self.terms.ticks
        place = np.where(place < 1, whole, place)
        low = np.minimum(place.astype(np.intp), self._work_steps - 1)
        part = (place - low).astype(np.float32)
        at = rows + low + int(held) * (self._work_steps + 1)
        costs = self._costs.reshape(-1)
        below = costs.take(at)
        return below + (costs.take(at + 1) - below) * part


def _exponent(multiplier: Numbers) -> Indices:
    exponent = np.rint(np.log(multiplier) / np.log(FACTOR))
    index: Indices = (np.clip(exponent, -EXTENT, EXTENT) + EXTENT).astype(np.intp)
    return index


def cost_table(
    terms: TableTerms, *, loss: float, returns: float, steps: int, work_steps: int
) -> Costs:
    """Expected costs in USD.

    (steps left, available, class of age, held, steps of work left after the step).
    """
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
    expected: Costs = (1 - chance) * stays + chance * changes
    return expected


def _choose(after: Costs, terms: TableTerms, left: int) -> Costs:
    """The least cost from the beginning of a step, with `left` steps until the deadline."""
    work = np.arange(after.shape[-1], dtype=np.float64)
    spot_start = terms.changeover_s / terms.step_s
    on_demand_start = terms.on_demand_start_s / terms.step_s
    hour = terms.step_s / HOUR_S
    spot, on_demand = terms.spot_usd_per_hour * hour, terms.on_demand_usd_per_hour * hour

    def fits(left_work: Numbers, steps: int) -> NDArray[np.bool_]:
        return np.ceil(left_work + on_demand_start - ROUNDING) <= steps

    idle = np.where(fits(work, left - 1), after[:, :, Held.NOTHING], NEVER)
    costs = {}
    for held, price, start in (
        (Held.SPOT, spot, spot_start),
        (Held.ON_DEMAND, on_demand, on_demand_start),
    ):
        for begins in (False, True):
            more = start if begins else 0.0
            if held == Held.SPOT:
                allowed = fits(work - 1 + more, left - 1)
            else:
                allowed = np.ceil(work + more - ROUNDING) <= left
            cost = price + moved(after[:, :, held], more - 1)
            costs[held, begins] = np.where(allowed, cost, NEVER)
            if held == Held.SPOT:
                costs[held, begins][1 - _UP] = NEVER
    best = np.empty_like(after)
    for held in Held:
        options = [costs[each, each != held] for each in (Held.SPOT, Held.ON_DEMAND)]
        best[:, :, held] = np.minimum(idle, np.minimum(*options))
    best[..., 0] = 0.0
    return np.minimum(best, NEVER)


def moved(costs: Costs, by: float) -> Costs:
    """Costs at `by` more steps of work, interpolated."""
    last = costs.shape[-1] - 1
    at = np.arange(last + 1) + by
    at = np.where((at > ROUNDING) & (at < 1), 1.0, at)  # The last tick is paid as a whole.
    low = np.floor(at + ROUNDING).astype(np.intp)
    part = np.maximum(at - low, 0.0).astype(np.float32)
    below, above = np.clip(low, 0, last), np.clip(low + 1, 0, last)
    moved = costs[..., below] * (1 - part) + costs[..., above] * part
    moved[..., at > last] = NEVER
    return moved
