"""What a project or a user may spend in a month, what is left of it, and when it runs out. Pure.

A month is one of the calendar, in UTC. Money of simulated prices counts like any other, as with the limits of a job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from holdfast.domain.billing.ledger import compute_bill
from holdfast.domain.billing.running_cost import MS_PER_HOUR, Month, to_ms
from holdfast.domain.events import Event
from holdfast.domain.jobfile.limits import dollars
from holdfast.domain.jobs.guards import SAVE_GRACE_S, grace_micros

__all__ = [
    "REACHED",
    "WARN_AT",
    "Budget",
    "BudgetBalance",
    "BudgetScope",
    "Month",
    "OnReached",
    "paid_between",
]

REACHED: Final = 100
"""Percent at which a budget is spent."""
WARN_AT: Final = (50, 80, 95)
"""Percent of a budget at which people are warned, where nobody says otherwise."""


class BudgetScope(StrEnum):
    """Whose money it is."""

    PROJECT = "project"
    USER = "user"


class OnReached(StrEnum):
    """What happens once a budget is spent."""

    PAUSE = "pause"
    """Jobs are paused, and none is begun."""
    WARN = "warn"
    """People are told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What may be spent in a month."""

    scope: BudgetScope
    name: str
    """Of the project or of the user."""
    monthly_micros: int
    warn_at: tuple[int, ...] = WARN_AT
    """In percent, ascending."""
    on_reached: OnReached = OnReached.PAUSE

    @property
    def words(self) -> str:
        """The budget, for a sentence."""
        return f"the budget of {self.scope} {self.name}, {dollars(self.monthly_micros)} a month"


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetBalance:
    """How much of a budget is spent."""

    budget: Budget
    at: datetime
    """When that was counted."""
    spent_micros: int
    """In the month of that moment, until then."""
    micros_per_hour: int
    """What all nodes that stood then cost together."""
    was_reached: bool = False
    """Whether jobs were paused for it in that month already: what is left then would buy a setup, and nothing else."""

    def spent_by(self, now: datetime) -> int:
        """Micro-dollars spent in the month of `now`, if no nodes came or went since they were counted."""
        since, spent = self._counted(now)
        return spent + max(0, to_ms(now) - to_ms(since)) * self.micros_per_hour // MS_PER_HOUR

    @property
    def committed_micros(self) -> int:
        """What the nodes that stand will cost until all their workers have saved and left."""
        return grace_micros(self.micros_per_hour)

    def is_spent(self, now: datetime, more_per_hour: int = 0) -> bool:
        """Whether what is left is no more than the time to save, also of nodes that cost `more_per_hour`."""
        if self.was_reached and self.at >= Month.of(now).start:
            return True
        needed = self.committed_micros + grace_micros(more_per_hour)
        return self.spent_by(now) + needed >= self.budget.monthly_micros

    def holds_back(self, now: datetime, more_per_hour: int = 0) -> bool:
        """Whether jobs of it are to be paused, and none to be begun."""
        return self.budget.on_reached is OnReached.PAUSE and self.is_spent(now, more_per_hour)

    def ms_until_spent(self, now: datetime) -> int | None:
        """Milliseconds until jobs of it will be paused; None: never in this month, if nothing comes or goes."""
        if self.budget.on_reached is OnReached.WARN or not self.micros_per_hour:
            return None
        since, spent = self._counted(now)
        left = self.budget.monthly_micros - self.committed_micros - spent
        left_ms = -(-left * MS_PER_HOUR // self.micros_per_hour) - (to_ms(now) - to_ms(since))
        return left_ms if left_ms <= to_ms(Month.of(now).end) - to_ms(now) else None

    def due_warnings(self, now: datetime) -> tuple[int, ...]:
        """Percentages of it that are spent, of those at which people are to be warned."""
        spent = self.spent_by(now) * 100
        return tuple(p for p in self.budget.warn_at if spent >= p * self.budget.monthly_micros)

    def told(self, now: datetime) -> str:
        """What is spent of which budget, and until when that matters, as a sentence."""
        left = (
            f", which leaves no more than the {SAVE_GRACE_S} s to save"
            if self.micros_per_hour
            else ""
        )
        return (
            f"{self.budget.words}, has paid {dollars(self.spent_by(now))} in {Month.of(now)}{left}; it begins anew at "
            f"{Month.of(now).end:%Y-%m-%d %H:%MZ}, or raise it: holdfast budgets set {self.budget.scope} {self.budget.name}"
        )

    def warning(self, percent: int, now: datetime) -> str:
        """That so much of it is spent, and what follows, as a sentence."""
        words = f"{percent} % are spent of {self.budget.words}"
        then = ""
        if percent >= REACHED:
            words = f"{self.budget.words}, is spent"
            if self.budget.on_reached is OnReached.PAUSE:
                end = Month.of(now).end
                then = f"; its jobs are paused, and nothing of it is begun before {end:%Y-%m-%d %H:%MZ}"
        elif (left_ms := self.ms_until_spent(now)) is not None:
            end = now + timedelta(milliseconds=max(0, left_ms))
            rate = f"{dollars(self.micros_per_hour)} an hour"
            then = f"; at {rate}, its jobs are paused at {end:%Y-%m-%d %H:%MZ}"
        return (
            f"{words}: {dollars(self.spent_by(now))} in {Month.of(now)}{then}; raise it with holdfast budgets set "
            f"{self.budget.scope} {self.budget.name}"
        )

    def _counted(self, now: datetime) -> tuple[datetime, int]:
        """From when on the meter runs, and what was spent by then: a month begins with nothing."""
        start = Month.of(now).start
        return (self.at, self.spent_micros) if self.at >= start else (start, 0)


def paid_between(events: Iterable[Event], start: datetime, end: datetime) -> int:
    """Micro-dollars that a job's nodes have cost from `start` until `end`, by all its facts, at the price of each moment.

    Both are cut from the sums of the bill, so that months add up to the whole. The rules of providers are left out, as
    in limits. This is the definition of what a budget counts; the sums of `Account` are kept equal to it by tests.
    """
    account = compute_bill(events, {}, end, with_rules=False)
    low, high = to_ms(start), to_ms(end)
    return sum(
        group.tariff.micros(item.begin_ms, max(item.begin_ms, min(high, item.end_ms)))
        - group.tariff.micros(item.begin_ms, max(item.begin_ms, min(low, item.end_ms)))
        for item in account.attempts
        for group in item.groups
    )
