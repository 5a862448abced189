"""What the reconciler is about to do, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from holdfast.domain.events.fact import Fact, Source


class Guard(StrEnum):
    """What ends a job that would go on."""

    MAX_COST = "max_cost"
    MAX_HOURLY_COST = "max_hourly_cost"
    DEADLINE = "deadline"
    MAX_DURATION = "max_duration"
    MAX_WAIT = "max_wait"
    MAX_FAILURES = "max_failures"
    NO_RETRY = "no_retry"
    ZERO_PROGRESS = "zero_progress"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRequested(Fact):
    """The reconciler is about to submit launch number `launch`; written before it does so."""

    source: ClassVar[Source] = Source.RECONCILER
    launch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardTripped(Fact):
    """A limit of the job was reached. It is stopping as if somebody had asked for it, and will have failed."""

    source: ClassVar[Source] = Source.RECONCILER
    guard: Guard
    detail: str
    """Which limit, and what was counted, as one sentence."""
