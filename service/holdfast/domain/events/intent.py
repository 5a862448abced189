"""What the reconciler is about to do, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from holdfast.domain.events.fact import Fact, Source


class Guard(StrEnum):
    """What stops a job that would go on."""

    MAX_COST = "max_cost"
    MAX_HOURLY_COST = "max_hourly_cost"
    DEADLINE = "deadline"
    MAX_DURATION = "max_duration"
    MAX_WAIT = "max_wait"
    MAX_FAILURES = "max_failures"
    NO_RETRY = "no_retry"
    SAME_CRASH = "same_crash"
    ZERO_PROGRESS = "zero_progress"
    BUDGET = "budget"

    @property
    def pauses(self) -> bool:
        """Whether what it stopped can be taken up again. What the program itself got wrong, nobody can lift a limit for."""
        return self not in {Guard.MAX_FAILURES, Guard.NO_RETRY, Guard.SAME_CRASH}


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRequested(Fact):
    """The reconciler is about to submit launch number `launch`; written before it does so."""

    source: ClassVar[Source] = Source.RECONCILER
    launch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardTripped(Fact):
    """A limit of the job was reached. It is pausing or stopping, as the guard says, as if somebody had asked for it."""

    source: ClassVar[Source] = Source.RECONCILER
    guard: Guard
    detail: str
    """Which limit, and what was counted, as one sentence."""
