"""What the reconciler is about to do, and why.

What the janitor of checkpoint stores did. It says nothing about nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from holdfast.domain.events.base import EventBase, Source
from holdfast.domain.events.values import Count


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
class LaunchRequested(EventBase):
    """The reconciler is about to submit launch number `launch`; written before it does so."""

    source: ClassVar[Source] = Source.RECONCILER
    launch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardTripped(EventBase):
    """A limit of the job was reached. It is pausing or stopping, as the guard says, as if somebody had asked for it."""

    source: ClassVar[Source] = Source.RECONCILER
    guard: Guard
    detail: str
    """Which limit, and what was counted, as one sentence."""


class Removal(StrEnum):
    """Why a checkpoint was removed."""

    SUPERSEDED = "superseded"
    """The job file does not ask to keep it any more."""
    OFF_LINEAGE = "off_lineage"
    """A later placement went on from an earlier step, so that nobody would resume from it."""
    DEAD_UPLOAD = "dead_upload"
    """It was never whole, and whoever was writing it is gone."""
    FOUND_GONE = "found_gone"
    """It was whole once, and is not in the store any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointsRemoved(EventBase):
    """Checkpoints, or what was left of them, are not in the store any more: nobody can resume from them."""

    source: ClassVar[Source] = Source.JANITOR
    checkpoints: tuple[str, ...]
    """Their names. Their bytes may take a moment longer to go."""
    removal: Removal
    size_bytes: Count
    """All of them together, as far as it is known."""
