"""Replays jobs over recorded markets, all windows at once. Pure.

The model is that of "Can't Be Late" (NSDI 2024). At the beginning of each tick, progress of the tick before is counted; then spot nodes are lost
where there are none any more; then the policy chooses. Every start is paid for `changeover` and makes no progress in that time.
Whole ticks are paid. A replay may begin in the middle of jobs, with what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from holdfast.domain.planning.beliefs import BeliefTable
from holdfast.domain.planning.situation import (
    HOUR_S,
    ROUNDING,
    Choice,
    Codes,
    Held,
    Indices,
    PlacementPolicy,
    Situation,
    of_place,
)
from holdfast.domain.planning.traces import Flags, Numbers

MAX_LATE: Final = 4
"""Multiples of the deadline after which a run that has not ended is a mistake of its policy.
A lower value hides how late a policy is; a higher value lets one that never ends fill the memory."""

SPARSE: Final = 8
"""The share of ended runs, as a divisor, above which they are dropped.
A lower value computes choices of ended runs; a higher value copies the others too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMarkets:
    """Recorded markets of the same gap, (markets, places, ticks).

    In one market, the places are replayed together.
    """

    gap_s: float
    available: Flags
    price: Numbers
    """USD per hour of a spot node's tick."""
    region: Indices
    """A number for the region of each place, (markets, places)."""
    beliefs: BeliefTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Jobs that start in a market, (rows)."""

    market: Indices
    start: Indices
    """The tick at which each begins."""
    work_s: float
    deadline_s: Numbers
    changeover_s: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Prices and conditions of all runs."""

    on_demand_usd_per_hour: float
    egress_usd: float = 0.0
    """For a start in another region than the last one."""
    sees_all: bool = True
    """Whether spot availability is seen while on-demand nodes are held."""
    on_demand_wait_s: float = 0.0
    lost_work_s: float = 0.0
    """Progress that is lost with a spot node at most."""
    risk_s: float | None = None
    """What policies take for that; None: the same."""
    margin_s: float = 0.0
    """What policies add to the changeover, so that the safety net is early."""
    budget_usd: float = np.inf
    """What may be paid for each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where all runs are at the first tick of a replay."""

    elapsed_s: float = 0.0
    """Time since the start of the job, from which its deadline counts."""
    progress_s: float = 0.0
    held: Held = Held.NOTHING
    place: int = -1
    """The place of the spot nodes that are held, or were held last."""
    warm_up_s: float = 0.0
    """What is left of the start of what is held."""
    unseen_s: float = 0.0
    """Time since spot availability was last seen."""


NEW: Final = Beginning()
"""The start of a job."""


@dataclass(slots=True, kw_only=True)
class Runs:
    """What became of each run, (rows)."""

    cost_usd: Numbers
    finish_s: Numbers
    """From the beginning of the replay."""
    spot_s: Numbers
    on_demand_s: Numbers
    warm_up_s: Numbers
    lost_s: Numbers
    """Progress that was lost."""
    tail_s: Numbers
    """Paid after the end of the work, in the last tick; negative: work that was left when the replay was cut off."""
    tail_usd: Numbers
    """The price of that time."""
    changeovers: Indices
    preemptions: Indices

    @property
    def idle_s(self) -> Numbers:
        """Time without nodes, with the wait for on-demand ones."""
        return self.finish_s - self.spot_s - self.on_demand_s

    @classmethod
    def of(cls, rows: int) -> Runs:
        """Those of runs that have not begun."""
        whole = {"changeovers", "preemptions"}
        values: dict[str, Any] = {
            each.name: np.zeros(rows, np.intp if each.name in whole else np.float64)
            for each in fields(cls)
        }
        return cls(**values)


Observer = Callable[[int, Situation, Choice, Indices], None]
"""Is called with the tick, the situation, the choices and the numbers of the rows."""


def replay(
    policy: PlacementPolicy,
    market: RecordedMarkets,
    windows: Windows,
    terms: Terms,
    observers: Sequence[Observer] = (),
    *,
    begin: Beginning = NEW,
    ticks: int | None = None,
) -> Runs:
    """Run all windows with a policy.

    After the end of a recording, no spot node is available. `ticks`: runs that have not ended by then are cut off; None: they are a mistake.
    """
    runs = Runs.of(len(windows.market))
    state = _State.of(windows, begin)
    limit = ticks or MAX_LATE * int(np.ceil(windows.deadline_s.max(initial=0) / market.gap_s))
    for tick in range(limit + 1):
        if tick:
            state.count_progress(market.gap_s)
            ends = state.progress_s >= state.work_s - ROUNDING
            state.end(runs, ends if tick != ticks else np.ones_like(ends), tick, market, terms)
            if state.is_sparse:
                state.keep(~state.has_ended)
        if not len(state.row):
            return runs
        at = state.start + tick
        available = _during(market.available, state.market, at)
        state.lose(available, terms)
        situation = _situation(
            state, begin, tick=tick, available=available, at=at, market=market, terms=terms
        )
        choice = policy.choose(situation)
        for observer in observers:
            observer(tick, situation, choice, state.row)
        state.apply(choice, available, situation, market.gap_s)
    raise AssertionError(f"{policy.name} did not end")


@dataclass(slots=True, kw_only=True)
class _State:
    """Runs, of which most have not ended, (rows)."""

    row: Indices
    market: Indices
    start: Indices
    work_s: Numbers
    deadline_s: Numbers
    changeover_s: Numbers
    has_ended: Flags
    held: Codes
    place: Indices
    progress_s: Numbers
    warm_up_s: Numbers
    wait_s: Numbers
    """What is left of the wait for on-demand nodes."""
    at_risk_s: Numbers
    unseen_s: Numbers
    cost_usd: Numbers
    spot_s: Numbers
    on_demand_s: Numbers
    paid_warm_up_s: Numbers
    lost_s: Numbers
    changeovers: Indices
    preemptions: Indices

    @classmethod
    def of(cls, windows: Windows, begin: Beginning) -> _State:
        rows = len(windows.market)
        zeros = ("wait_s", "at_risk_s", "cost_usd", "spot_s", "on_demand_s", "paid_warm_up_s")
        return cls(
            row=np.arange(rows),
            market=windows.market,
            start=windows.start,
            work_s=np.full(rows, windows.work_s),
            deadline_s=windows.deadline_s,
            changeover_s=windows.changeover_s,
            has_ended=np.zeros(rows, np.bool_),
            held=np.full(rows, begin.held, np.int8),
            place=np.full(rows, begin.place),
            progress_s=np.full(rows, begin.progress_s),
            warm_up_s=np.full(rows, begin.warm_up_s),
            unseen_s=np.full(rows, begin.unseen_s),
            changeovers=np.zeros(rows, np.intp),
            preemptions=np.zeros(rows, np.intp),
            **{name: np.zeros(rows) for name in (*zeros, "lost_s")},
        )

    @property
    def is_sparse(self) -> bool:
        """Whether so many runs have ended that it pays to drop them."""
        return int(self.has_ended.sum()) * SPARSE > len(self.row) or bool(self.has_ended.all())

    def keep(self, rows: Flags) -> None:
        """Keep some rows."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name)[rows])

    def count_progress(self, gap_s: float) -> None:
        """Count what was done in the last tick."""
        holds = self.held != Held.NOTHING
        busy_s = np.where(holds, np.maximum(0.0, gap_s - self.wait_s), 0.0)
        self.wait_s = np.maximum(0.0, self.wait_s - gap_s)
        warm_s = np.minimum(self.warm_up_s, busy_s)
        self.warm_up_s -= warm_s
        self.paid_warm_up_s += warm_s
        gained_s = busy_s - warm_s
        self.progress_s += gained_s
        self.at_risk_s += np.where(self.held == Held.SPOT, gained_s, 0.0)

    def end(
        self, runs: Runs, ends: Flags, tick: int, market: RecordedMarkets, terms: Terms
    ) -> None:
        """Write down runs that end."""
        ends &= ~self.has_ended
        if not ends.any():
            return
        self.has_ended |= ends
        rows = self.row[ends]
        for name in ("cost_usd", "spot_s", "on_demand_s", "lost_s", "changeovers", "preemptions"):
            getattr(runs, name)[rows] = getattr(self, name)[ends]
        runs.finish_s[rows] = tick * market.gap_s
        runs.warm_up_s[rows] = self.paid_warm_up_s[ends]
        runs.tail_s[rows] = self.progress_s[ends] - self.work_s[ends]
        at = np.minimum(self.start[ends] + tick - 1, market.price.shape[2] - 1)
        spot_usd = market.price[self.market[ends], np.maximum(self.place[ends], 0), at]
        buys = self.held[ends] == Held.ON_DEMAND
        usd = np.where(buys, terms.on_demand_usd_per_hour, spot_usd)
        runs.tail_usd[rows] = runs.tail_s[rows] * usd / HOUR_S
        self.held[ends] = Held.NOTHING

    def lose(self, available: Flags, terms: Terms) -> None:
        """Take spot nodes that are not available any more."""
        spot = self.held == Held.SPOT
        lost = spot & ~of_place(available, self.place)
        self.held = np.where(lost, np.int8(Held.NOTHING), self.held)
        self.preemptions += lost
        if terms.lost_work_s:
            self.at_risk_s = np.minimum(self.at_risk_s, terms.lost_work_s)
            gone_s = np.where(lost, self.at_risk_s, 0.0)
            self.progress_s -= gone_s
            self.lost_s += gone_s

    def apply(self, choice: Choice, available: Flags, situation: Situation, gap_s: float) -> None:
        """Hold what was chosen, and pay for the tick."""
        spot = (choice.holds == Held.SPOT) & ~self.has_ended
        # A try without sight may find no spot node.
        spot &= of_place(available, choice.place)
        on_demand = (choice.holds == Held.ON_DEMAND) & ~self.has_ended
        moves = spot & (choice.place != self.place)
        starts = np.where(
            on_demand, self.held != Held.ON_DEMAND, spot & (moves | (self.held != Held.SPOT))
        )
        if situation.egress_usd:
            self.cost_usd += np.where(moves, of_place(situation.move_usd, choice.place), 0.0)
        self.place = np.where(spot, choice.place, self.place)
        self.held = spot.astype(np.int8) * np.int8(Held.SPOT) + on_demand.astype(np.int8) * np.int8(
            Held.ON_DEMAND
        )
        self.warm_up_s = np.where(
            starts, self.changeover_s, np.where(self.held > 0, self.warm_up_s, 0.0)
        )
        self.at_risk_s = np.where(starts | (self.held != Held.SPOT), 0.0, self.at_risk_s)
        self.changeovers += starts
        paid_s: Numbers | float = gap_s
        if situation.on_demand_wait_s:
            self.wait_s = np.where(
                starts & on_demand,
                situation.on_demand_wait_s,
                np.where(on_demand, self.wait_s, 0.0),
            )
            paid_s = np.maximum(0.0, gap_s - self.wait_s)
        self.spot_s += spot * gap_s
        self.on_demand_s += on_demand * paid_s
        price = of_place(situation.spot_price, choice.place)
        self.cost_usd += spot * price * (gap_s / HOUR_S) + on_demand * paid_s * (
            situation.on_demand_price / HOUR_S
        )


def _situation(
    state: _State,
    begin: Beginning,
    *,
    tick: int,
    available: Flags,
    at: Indices,
    market: RecordedMarkets,
    terms: Terms,
) -> Situation:
    rows = len(available)
    last = market.available.shape[2] - 1
    when = np.minimum(at, last)
    believed = when
    if not terms.sees_all:
        state.unseen_s = np.where(state.held == Held.ON_DEMAND, state.unseen_s + market.gap_s, 0.0)
        available = available & (state.unseen_s == 0.0)[:, None]
        # What was seen before the start; what is seen later may have gaps.
        believed = np.minimum(state.start, last)
    return Situation(
        row=state.row,
        tick_s=market.gap_s,
        elapsed_s=np.full(rows, begin.elapsed_s + tick * market.gap_s),
        deadline_s=state.deadline_s,
        work_s=state.work_s,
        progress_s=state.progress_s,
        at_risk_s=state.at_risk_s,
        risk_s=terms.lost_work_s if terms.risk_s is None else terms.risk_s,
        held=state.held,
        place=state.place,
        warm_up_s=state.warm_up_s,
        changeover_s=state.changeover_s + terms.margin_s,
        on_demand_wait_s=terms.on_demand_wait_s,
        available=available,
        sees_all=terms.sees_all,
        unseen_s=state.unseen_s,
        spot_price=market.price[state.market, :, when],
        on_demand_price=terms.on_demand_usd_per_hour,
        region=market.region[state.market],
        egress_usd=terms.egress_usd,
        budget_usd=terms.budget_usd - state.cost_usd,
        recall=lambda: market.beliefs.at(state.market, believed),
    )


def _during(values: Flags, market: Indices, at: Indices) -> Flags:
    """Values of a tick, (rows, places); False after the end of the recording."""
    last = values.shape[2] - 1
    found = values[market, :, np.minimum(at, last)]
    if len(at) and at.max() > last:
        found &= (at <= last)[:, None]
    return found
