"""Monthly budgets of projects and users: amount, balance, and when it runs out. Pure.

A month is a calendar month in UTC. Simulated prices count like real ones, as they do for the limits of a job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.billing.running_cost import MS_PER_HOUR, Month, to_ms
from holdfast.domain.events import Event
from holdfast.domain.jobfile.limits import format_usd
from holdfast.domain.jobs.guards import SAVE_GRACE_S, grace_micros

__all__ = [
    "SPENT_PERCENT",
    "WARN_AT",
    "Budget",
    "BudgetBalance",
    "BudgetScope",
    "Month",
    "OnReached",
    "paid_between",
]

SPENT_PERCENT: Final = 100
"""Percentage at which a budget is spent."""
WARN_AT: Final = (50, 80, 95)
"""Default percentages of a budget at which warnings are sent."""


class BudgetScope(StrEnum):
    """Whether a budget belongs to a project or a user."""

    PROJECT = "project"
    USER = "user"


class OnReached(StrEnum):
    """Action once a budget is spent."""

    PAUSE = "pause"
    """Pause its jobs and start no new ones."""
    WARN = "warn"
    """Send a notification only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A monthly spending limit of a project or a user."""

    scope: BudgetScope
    name: str
    """Name of the project or the user."""
    monthly_micros: int
    warn_at: tuple[int, ...] = WARN_AT
    """Percentages in ascending order."""
    on_reached: OnReached = OnReached.PAUSE

    @property
    def description(self) -> str:
        """The budget as a phrase for messages."""
        return f"the budget of {self.scope} {self.name} ({format_usd(self.monthly_micros)} a month)"


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetBalance:
    """Amount spent of a budget at one time."""

    budget: Budget
    at: datetime
    """Time of the computation."""
    spent_micros: int
    """Amount spent in the month of `at`, up to `at`."""
    micros_per_hour: int
    """Total hourly price of all nodes running at `at`."""
    was_reached: bool = False
    """Whether the budget already paused jobs in this month. The remainder would only pay for another setup."""

    def spent_by(self, now: datetime) -> int:
        """Micro-dollars spent in the month of `now` if no nodes started or stopped since `at`."""
        since, spent = self._month_to_date(now)
        return spent + max(0, to_ms(now) - to_ms(since)) * self.micros_per_hour // MS_PER_HOUR

    @property
    def committed_micros(self) -> int:
        """Cost of the running nodes until all their workers have saved and exited."""
        return grace_micros(self.micros_per_hour)

    def is_spent(self, now: datetime, more_per_hour: int = 0) -> bool:
        """Whether the remainder only covers saving, including new nodes at `more_per_hour`."""
        if self.was_reached and self.at >= Month.containing(now).start:
            return True
        needed = self.committed_micros + grace_micros(more_per_hour)
        return self.spent_by(now) + needed >= self.budget.monthly_micros

    def blocks_jobs(self, now: datetime, more_per_hour: int = 0) -> bool:
        """Whether the budget's jobs must pause and new ones must not start."""
        return self.budget.on_reached is OnReached.PAUSE and self.is_spent(now, more_per_hour)

    def ms_until_spent(self, now: datetime) -> int | None:
        """Milliseconds until the budget's jobs pause at the current rate.

        None if not within this month.
        """
        if self.budget.on_reached is OnReached.WARN or not self.micros_per_hour:
            return None
        since, spent = self._month_to_date(now)
        left = self.budget.monthly_micros - self.committed_micros - spent
        left_ms = -(-left * MS_PER_HOUR // self.micros_per_hour) - (to_ms(now) - to_ms(since))
        return left_ms if left_ms <= to_ms(Month.containing(now).end) - to_ms(now) else None

    def due_warnings(self, now: datetime) -> tuple[int, ...]:
        """The warning percentages that have been reached."""
        spent = self.spent_by(now) * 100
        return tuple(p for p in self.budget.warn_at if spent >= p * self.budget.monthly_micros)

    def spent_message(self, now: datetime) -> str:
        """The amount spent, when the budget resets and how to raise it, as a sentence."""
        left = (
            f" (the rest is reserved for the {SAVE_GRACE_S} s to save)"
            if self.micros_per_hour
            else ""
        )
        return (
            f"{self.budget.description} is spent: {format_usd(self.spent_by(now))} in {Month.containing(now)}{left}; it resets at "
            f"{Month.containing(now).end:%Y-%m-%d %H:%MZ}; to raise it: holdfast budgets set {self.budget.scope} {self.budget.name}"
        )

    def warning(self, percent: int, now: datetime) -> str:
        """A warning that this percentage is spent, with the consequence, as a sentence."""
        words = f"{percent} % of {self.budget.description} is spent"
        then = ""
        if percent >= SPENT_PERCENT:
            words = f"{self.budget.description} is spent"
            if self.budget.on_reached is OnReached.PAUSE:
                end = Month.containing(now).end
                then = f"; its jobs are paused, and no job starts before {end:%Y-%m-%d %H:%MZ}"
        elif (left_ms := self.ms_until_spent(now)) is not None:
            end = now + timedelta(milliseconds=max(0, left_ms))
            rate = f"{format_usd(self.micros_per_hour)} an hour"
            then = f"; at {rate}, its jobs will be paused at {end:%Y-%m-%d %H:%MZ}"
        return (
            f"{words}: {format_usd(self.spent_by(now))} in {Month.containing(now)}{then}; raise it with holdfast budgets set "
            f"{self.budget.scope} {self.budget.name}"
        )

    def _month_to_date(self, now: datetime) -> tuple[datetime, int]:
        """Start time and amount from which `micros_per_hour` accrues; a month begins at zero."""
        start = Month.containing(now).start
        return (self.at, self.spent_micros) if self.at >= start else (start, 0)


def paid_between(events: Iterable[Event], start: datetime, end: datetime) -> int:
    """Micro-dollars of a job's nodes from `start` until `end`, computed from all its events.

    Both ends are differences of the bill's cumulative sums, so that months add up to the total.
    Provider rules are excluded, as in limits. This defines what a budget counts; tests keep the
    sums of `RunningCost` equal to it.
    """
    account = compute_bill(events, {}, end, with_rules=False)
    low, high = to_ms(start), to_ms(end)
    return sum(
        group.rate.micros(item.begin_ms, max(item.begin_ms, min(high, item.end_ms)))
        - group.rate.micros(item.begin_ms, max(item.begin_ms, min(low, item.end_ms)))
        for item in account.attempts
        for group in item.groups
    )
