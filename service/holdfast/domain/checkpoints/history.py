"""Checkpoint history of a job: every save attempt with its outcome. Pure.

It is computed from events alone, and includes the job's current save health as its workers report
it.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from holdfast_worker.protocol.policies import ConsistencyGuarantee, OnFailure

from holdfast.domain.events import (
    CapacityLost,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointsRemoved,
    Event,
    Finished,
    Removal,
    RestoreStarted,
    SavingFailed,
    TrainingStarted,
    WorkerFact,
    WorkerLeft,
)
from holdfast.domain.events.values import Interval, Metric


class Fate(StrEnum):
    """Outcome of a save attempt."""

    COMPLETE = "complete"
    """In the store, complete as far as known, and usable for a resume."""
    FAILED = "failed"
    """Failed before its commit."""
    DAMAGED = "damaged"
    """Committed, but an attempt that tried to resume from it could not use it."""
    ABANDONED = "abandoned"
    """Complete, but a later attempt resumed from an earlier step, so no resume uses it."""
    REMOVED = "removed"
    """No longer in the store."""


@dataclass(frozen=True, slots=True)
class UnusableCheckpoint:
    """An attempt that could not use a checkpoint."""

    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointAttempt:
    """One save attempt. Failed ones have no name, size or digest."""

    seq: int
    """Number of the event that recorded it."""
    attempt: int
    step: int
    at: datetime
    """Time of the commit or of the failure."""
    name: str | None = None
    snapshot_at: datetime | None = None
    """Time of the snapshot."""
    size_bytes: int | None = None
    stall_ms: int | None = None
    upload_ms: int | None = None
    weights_sha256: str | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    failure: str = ""
    """Reason of the failure; empty if it succeeded."""
    restored_by: tuple[int, ...] = ()
    """Attempts that resumed from it."""
    passed_over: tuple[UnusableCheckpoint, ...] = ()
    """Attempts that could not use it, with reasons."""
    abandoned_by: ResumePoint | None = None
    """A later attempt that resumed from an earlier step; None without one."""
    removal: Removal | None = None
    removed_at: datetime | None = None

    @property
    def fate(self) -> Fate:
        """Outcome as far as known; the latest information applies."""
        if self.failure:
            return Fate.FAILED
        if self.removal:
            return Fate.REMOVED
        if self.passed_over:
            return Fate.DAMAGED
        return Fate.ABANDONED if self.abandoned_by else Fate.COMPLETE

    @property
    def is_stored(self) -> bool:
        """Whether it is in the store, usable or not."""
        return self.fate not in {Fate.FAILED, Fate.REMOVED}


@dataclass(frozen=True, order=True, slots=True)
class ResumePoint:
    """The point at which an attempt started or resumed."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Information about a checkpoint from sources other than its writer."""

    restored_by: tuple[int, ...] = ()
    passed_over: tuple[UnusableCheckpoint, ...] = ()
    removal: Removal | None = None
    removed_at: datetime | None = None


class CheckpointHistory:
    """All save attempts of one job. Events must be applied in order, each once."""

    def __init__(self) -> None:
        self.seq = 0
        """Number of the last applied event."""
        self.ended_at: datetime | None = None
        """End of the job; None until it has ended."""
        self._saves: dict[int, CheckpointAttempt] = {}
        self._named: dict[str, int] = {}
        self._outcomes: dict[str, _Outcome] = {}
        """Outcomes by name: information about a checkpoint may precede its writer's report."""
        self._starts: list[ResumePoint] = []
        """Resume points that abandon checkpoints no later one does, at ascending steps."""
        self._restoring: set[int] = set()
        self._last_lost_attempt = 0

    def apply(self, seq: int, event: Event) -> None:
        """Apply the next event."""
        self.seq = seq
        match event:
            case CheckpointCommitted():
                self._named[event.checkpoint] = seq
                self._saves[seq] = _committed_attempt(seq, event)
            case CheckpointFailed(attempt=attempt, step=step, at=at, detail=detail):
                failed = CheckpointAttempt(
                    seq=seq, attempt=attempt, step=step, at=at, failure=detail or "failed"
                )
                self._saves[seq] = failed
            case TrainingStarted():
                self._apply_training_started(event)
            case CheckpointsRemoved(checkpoints=names, removal=removal, at=at):
                for name in names:
                    self._update_outcome(name, removal=removal, removed_at=at)
            case RestoreStarted(attempt=attempt) if attempt > self._last_lost_attempt:
                self._restoring.add(attempt)
            case WorkerLeft(attempt=attempt):
                self._restoring.discard(attempt)
            case CapacityLost(attempt=attempt):
                self._last_lost_attempt = max(self._last_lost_attempt, attempt)
                self._restoring = {other for other in self._restoring if other > attempt}
            case Finished(at=at):
                self.ended_at = at
                self._restoring.clear()
            case _:
                pass

    def is_removed(self, name: str) -> bool:
        """Whether a checkpoint was reported as removed, even one without an earlier report."""
        fate = self._outcomes.get(name)
        return fate is not None and fate.removal is not None

    @property
    def is_restoring(self) -> bool:
        """Whether an attempt is choosing or reading a checkpoint, as far as known."""
        return bool(self._restoring)

    def attempts(self) -> list[CheckpointAttempt]:
        """All save attempts, newest first."""
        saves = map(self._with_outcome, self._saves.values())
        return sorted(saves, key=lambda save: (save.at, save.seq), reverse=True)

    def stored(self) -> list[CheckpointAttempt]:
        """Checkpoints in the store, as far as known."""
        named = self._named.items()
        return [
            self._with_outcome(self._saves[seq]) for name, seq in named if not self.is_removed(name)
        ]

    def prune(self) -> None:
        """Drop the details of removed checkpoints, to bound memory in long-lived caches."""
        kept = {name: seq for name, seq in self._named.items() if not self.is_removed(name)}
        self._saves = {seq: self._saves[seq] for seq in kept.values()}
        self._named = kept
        self._outcomes = {
            name: fate if name in kept else _Outcome(removal=fate.removal)
            for name, fate in self._outcomes.items()
        }

    def find(self, name: str) -> CheckpointAttempt | None:
        """The save attempt of a checkpoint; None if unknown."""
        seq = self._named.get(name)
        return None if seq is None else self._with_outcome(self._saves[seq])

    def newest(self) -> CheckpointAttempt | None:
        """The checkpoint that a resume would use: the complete one at the highest step, or None."""
        whole = (save for save in self.attempts() if save.fate is Fate.COMPLETE)
        return max(whole, key=lambda save: (save.step, save.attempt), default=None)

    def _apply_training_started(self, event: TrainingStarted) -> None:
        self._restoring.discard(event.attempt)
        self._add_start(ResumePoint(event.attempt, event.step))
        name = event.restored_from
        if name and not event.held_at:
            self._update_outcome(
                name, restored_by=(*self._outcome_of(name).restored_by, event.attempt)
            )
        for over in event.passed_over:
            found = UnusableCheckpoint(event.attempt, over.reason)
            known = self._outcome_of(over.checkpoint).passed_over
            self._update_outcome(over.checkpoint, passed_over=(*known, found))

    def _add_start(self, start: ResumePoint) -> None:
        """Add a resume point unless an existing one covers it, and drop those it covers."""
        if any(s.attempt >= start.attempt and s.step <= start.step for s in self._starts):
            return
        useful = (s for s in self._starts if s.attempt > start.attempt or s.step < start.step)
        self._starts = sorted((*useful, start))

    def _outcome_of(self, name: str) -> _Outcome:
        return self._outcomes.get(name, _Outcome())

    def _update_outcome(self, name: str, **words: Any) -> None:
        self._outcomes[name] = replace(self._outcome_of(name), **words)

    def _with_outcome(self, save: CheckpointAttempt) -> CheckpointAttempt:
        """The save attempt with its outcome."""
        later = bisect.bisect_left(self._starts, ResumePoint(save.attempt + 1, 0))
        # Of all later resume points, the first has the lowest step.
        first = self._starts[later] if later < len(self._starts) else None
        cut = first if first and first.step < save.step else None
        fate = self._outcomes.get(save.name or "")
        if fate is None:
            return replace(save, abandoned_by=cut) if cut else save
        return replace(
            save,
            abandoned_by=cut,
            restored_by=fate.restored_by,
            passed_over=fate.passed_over,
            removal=fate.removal,
            removed_at=fate.removed_at,
        )


def _committed_attempt(seq: int, event: CheckpointCommitted) -> CheckpointAttempt:
    return CheckpointAttempt(
        seq=seq,
        attempt=event.attempt,
        step=event.step,
        at=event.at,
        name=event.checkpoint,
        snapshot_at=event.snapshot_at,
        size_bytes=event.size_bytes,
        stall_ms=event.stall_ms,
        upload_ms=event.upload_ms,
        weights_sha256=event.weights_sha256,
        metrics=event.metrics,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveHealth:
    """Save health of a job over all attempts."""

    guarantee: ConsistencyGuarantee | None = None
    """Consistency guarantee of the store; None until a worker has tested it."""
    interval: Interval | None = None
    """Checkpoint interval; None until measured, or if the job file sets it."""
    trouble: str = ""
    """Message that checkpoints fail, with the consequence; empty otherwise and after the next checkpoint."""

    def after(self, event: WorkerFact) -> SaveHealth:
        """The save health after another event."""
        match event:
            case RestoreStarted(guarantee=guarantee):
                return replace(self, guarantee=guarantee or self.guarantee)
            case CheckpointCommitted(interval=interval):
                return replace(self, interval=interval, trouble="")
            case SavingFailed():
                return replace(self, trouble=_failure_message(event))
            case _:
                return self


def _failure_message(event: SavingFailed) -> str:
    safe = f"the last durable step is {event.safe_step:,}" if event.safe_step else "none is durable"
    follows = "stopped" if event.policy is OnFailure.STOP else "continues and retries"
    return (
        f"{event.failures} consecutive checkpoints failed, and {safe}; "
        f"attempt {event.attempt} {follows}: {event.detail}"
    )
