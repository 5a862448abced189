"""Events of the service: launches, tripped guards and removed checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias

from holdfast.domain.events.base import EventBase, Source
from holdfast.domain.events.planning import LaunchPlacement
from holdfast.domain.events.values import Count, Demand, Priority


class Guard(StrEnum):
    """Guard that pauses or stops a job."""

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
        """Whether the guard pauses the job.

        Program errors stop it instead, since no limit can be raised for them.
        """
        return self not in {Guard.MAX_FAILURES, Guard.NO_RETRY, Guard.SAME_CRASH}


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRequested(EventBase):
    """The reconciler is about to submit launch number `launch`; recorded before the submission."""

    source: ClassVar[Source] = Source.RECONCILER
    launch: int
    placement: LaunchPlacement | None = None
    """What it asks for, as its plan has chosen; None: what the job file says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted(EventBase):
    """The quotas have room for the job; recorded before the launch is requested.

    The job holds its share until it has ended or is paused. Recorded only where quotas are set.
    """

    source: ClassVar[Source] = Source.RECONCILER
    demand: Demand
    """What it holds."""
    waited_s: Count = 0
    """Time in the queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardTripped(EventBase):
    """A guard tripped. The job is pausing or stopping, as for a request by a user."""

    source: ClassVar[Source] = Source.RECONCILER
    guard: Guard
    detail: str
    """The limit and the measured value, as one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PausedForPriority(EventBase):
    """The job is pausing, because one with a higher priority waits for its share.

    Recorded only where the quota of the project allows it. The job waits in the queue again once its nodes are gone.
    """

    source: ClassVar[Source] = Source.RECONCILER
    for_job: str
    """Id of the other job."""
    priority: Priority
    """Its priority."""

    @property
    def reason(self) -> str:
        """Why the job pauses, as a phrase."""
        return f"paused for job {self.for_job}, which has priority {self.priority}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Requeued(EventBase):
    """The job waits in the queue again after a pause for another one."""

    source: ClassVar[Source] = Source.RECONCILER
    for_job: str
    """Id of the other job."""


class Removal(StrEnum):
    """Reason for the removal of a checkpoint."""

    SUPERSEDED = "superseded"
    """The retention policy no longer keeps it."""
    OFF_LINEAGE = "off_lineage"
    """A later attempt resumed from an earlier step, so no resume would use it."""
    DEAD_UPLOAD = "dead_upload"
    """It was never complete, and its writer is gone."""
    FOUND_GONE = "found_gone"
    """It was complete once and is no longer in the store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointsRemoved(EventBase):
    """Checkpoints, or remains of them, are no longer in the store and cannot be resumed from."""

    source: ClassVar[Source] = Source.JANITOR
    checkpoints: tuple[str, ...]
    """Names of the checkpoints. Their data may be deleted slightly later."""
    removal: Removal
    size_bytes: Count
    """Total size, as far as known."""


ServiceFact: TypeAlias = (
    LaunchRequested | Admitted | GuardTripped | PausedForPriority | Requeued | CheckpointsRemoved
)
