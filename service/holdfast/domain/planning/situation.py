"""What a policy sees, and what it answers: arrays with one row for each job. Pure.

The same policies plan jobs, with one row, and are replayed over recorded markets, with one row for each of thousands of windows. Times are in seconds, prices in USD per hour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.planning.traces import Flags, Numbers

Value = TypeVar("Value", bound=np.generic)
Codes: TypeAlias = NDArray[np.int8]
Indices: TypeAlias = NDArray[np.intp]

HOUR_S: Final = 3600.0
ROUNDING: Final = 1e-9
"""Ticks by which a quotient of seconds may miss a whole number.
A lower value counts a tick too many because of rounding; a higher value loses a real one."""


class Held(IntEnum):
    """What a job holds, or is to hold, during a tick."""

    NOTHING = 0
    SPOT = 1
    ON_DEMAND = 2


class Reason(IntEnum):
    """Why a choice was made."""

    SPOT_IS_AVAILABLE = 0
    SPOT_STANDS = 1
    WAIT_FOR_SPOT = 2
    BEHIND_SCHEDULE = 3
    SAFETY_NET = 4
    AHEAD_OF_SCHEDULE = 5
    LEAST_EXPECTED_COST = 6
    ON_DEMAND_STANDS = 7
    CHEAPER_PLACE = 8
    WITHIN_BUDGET = 9
    OVER_BUDGET = 10


@dataclass(slots=True, kw_only=True)
class Beliefs:
    """What is known of the places from their own history, (rows, places)."""

    age_s: Numbers
    """Time since the place was last seen to change between available and not."""
    loss: Numbers
    """How often spot nodes are lost there, as a multiple of the rate that is usual at that age."""
    returns: Numbers
    """How often they become available again, likewise."""

    def of_rows(self, rows: Flags) -> Beliefs:
        """Those of some rows."""
        return Beliefs(age_s=self.age_s[rows], loss=self.loss[rows], returns=self.returns[rows])


@dataclass(slots=True, kw_only=True)
class Situation:
    """The state of jobs at the beginning of a tick, before the choice for it."""

    row: Indices
    """A number for each row that stays the same from tick to tick."""
    tick_s: float
    elapsed_s: Numbers
    deadline_s: Numbers
    """From the start, as `elapsed_s`; infinite without a deadline, for all rows or none."""
    work_s: Numbers
    """Time of training that the whole job takes without any loss."""
    progress_s: Numbers
    """Of it, what is done; more may be lost with a spot node, see `at_risk_s`."""
    at_risk_s: Numbers
    """What the loss of the spot node that is held would cost of the progress."""
    risk_s: float
    """What the loss of a spot node costs at most."""
    held: Codes
    place: Indices
    """The place of what is held, or was held last; -1 before the first."""
    warm_up_s: Numbers
    """What is left of the time in which what is held makes no progress."""
    changeover_s: Numbers
    """Time without progress after a start."""
    on_demand_wait_s: float
    """Time for which an on-demand node is awaited, at no cost."""
    available: Flags
    """Whether spot nodes can be had, (rows, places); False where that is not seen."""
    sees_all: bool
    """Whether their availability is seen also while on-demand nodes are held."""
    unseen_s: Numbers
    """Time since their availability was last seen; 0 where it is seen."""
    spot_price: Numbers
    """(rows, places)."""
    on_demand_price: float
    region: Indices
    """A number for the region of each place, (rows, places)."""
    egress_usd: float
    """Cost of a start in another region than the last one."""
    budget_usd: Numbers
    """What may still be paid; infinite without a limit."""
    recall: Callable[[], Beliefs]
    """What is believed of the places; called by policies that use it."""
    ticks_left: Numbers = field(init=False)
    """Whole ticks until the deadline."""

    def __post_init__(self) -> None:
        left = (self.deadline_s - self.elapsed_s) / self.tick_s
        self.ticks_left = np.floor(left + ROUNDING)

    @property
    def is_seen(self) -> Flags:
        """Whether the availability of spot nodes is seen."""
        seen: Flags = self.unseen_s == 0.0
        return seen

    @property
    def remaining_s(self) -> Numbers:
        """Work that is left."""
        return self.work_s - self.progress_s

    @property
    def on_demand_start_s(self) -> Numbers:
        """Time from the choice of on-demand nodes to their first progress."""
        return self.changeover_s + self.on_demand_wait_s

    @property
    def move_usd(self) -> Numbers:
        """Cost of a start in each place because of its region, (rows, places)."""
        last = of_place(self.region, self.place)[:, None]
        usd: Numbers = ((self.region != last) & (self.place >= 0)[:, None]) * self.egress_usd
        return usd

    def ticks(self, duration_s: Numbers) -> Numbers:
        """The ticks that a duration takes, whole ones."""
        return np.ceil(duration_s / self.tick_s - ROUNDING)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to hold during the next tick."""

    holds: Codes
    place: Indices
    """Of a spot node; ignored otherwise."""
    reason: Codes


class PlacementPolicy(Protocol):
    """Chooses, for each row by itself, what is held during a tick."""

    name: str

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        ...


def cheapest_place(situation: Situation) -> tuple[Indices, Flags]:
    """The place with the least price among those with spot nodes, and whether there is one."""
    if situation.available.shape[1] == 1:
        return np.zeros(len(situation.held), np.intp), situation.available[:, 0]
    price = np.where(situation.available, situation.spot_price, np.inf)
    is_there: Flags = np.any(situation.available, axis=1)
    return price.argmin(axis=1), is_there


def of_place(values: NDArray[Value], place: Indices) -> NDArray[Value]:
    """The value of each row's place, of (rows, places); where it has none, that of the first."""
    if values.shape[1] == 1:
        return values[:, 0]
    return values[np.arange(len(place)), np.maximum(place, 0)]


def holds_spot(situation: Situation) -> Flags:
    """Whether a spot node is held."""
    is_held: Flags = situation.held == Held.SPOT
    return is_held


def is_idle_safe(situation: Situation) -> Flags:
    """Whether on-demand nodes still meet the deadline after a tick without any node.

    "Safe" means after the worst outcome of the tick. The test is exact: one tick less, and the deadline would be missed.
    """
    needed = situation.ticks(situation.remaining_s + situation.on_demand_start_s)
    return needed <= situation.ticks_left - 1


def is_spot_safe(situation: Situation, *, is_start: Flags | bool) -> Flags:
    """Whether on-demand nodes still meet the deadline after a tick on spot nodes.

    The worst outcome is that they are lost at its end.
    """
    warm_up_s = np.where(is_start, situation.changeover_s, situation.warm_up_s)
    gained_s = np.maximum(0.0, situation.tick_s - warm_up_s)
    left_s = situation.remaining_s - gained_s
    # What is saved counts: a loss takes with it what was done since the last checkpoint.
    lost_s = np.minimum(situation.risk_s, np.where(is_start, 0.0, situation.at_risk_s) + gained_s)
    needed = situation.ticks(left_s + lost_s + situation.on_demand_start_s)
    return (needed <= situation.ticks_left - 1) | ((left_s <= 0) & (situation.ticks_left >= 1))
