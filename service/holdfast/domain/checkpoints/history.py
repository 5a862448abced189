"""Every try to save of a job, and what became of it: folded from the facts, and nothing else is asked.

How the saving of a job stands, as its workers tell it. Pure.
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
    """What became of a try to save."""

    COMPLETE = "complete"
    """It is in the store, whole as far as anybody has told, and a resume may take it."""
    FAILED = "failed"
    """It never became a checkpoint."""
    DAMAGED = "damaged"
    """It was committed, and an attempt that wanted to resume from it could not use it."""
    ABANDONED = "abandoned"
    """It is whole, but a later attempt went on from an earlier step, so that no resume takes it."""
    REMOVED = "removed"
    """It is not in the store any more."""


@dataclass(frozen=True, slots=True)
class UnusableCheckpoint:
    """An attempt that could not use a checkpoint."""

    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointAttempt:
    """One try to save. Those that failed have no name, size or digest."""

    seq: int
    """Number of the fact that told it."""
    attempt: int
    step: int
    at: datetime
    """When it was durable, or given up."""
    name: str | None = None
    taken_at: datetime | None = None
    """When the state was taken."""
    size_bytes: int | None = None
    stall_ms: int | None = None
    upload_ms: int | None = None
    weights_sha256: str | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    failure: str = ""
    """Why it failed, in words; empty if it did not."""
    restored_by: tuple[int, ...] = ()
    """Attempts that went on from it."""
    passed_over: tuple[UnusableCheckpoint, ...] = ()
    """Attempts that could not use it, and why."""
    left_behind: Start | None = None
    """A later attempt that went on from an earlier step; None while there is none."""
    removal: Removal | None = None
    removed_at: datetime | None = None

    @property
    def fate(self) -> Fate:
        """What became of it, as far as was told. What came last outweighs the rest."""
        if self.failure:
            return Fate.FAILED
        if self.removal:
            return Fate.REMOVED
        if self.passed_over:
            return Fate.DAMAGED
        return Fate.ABANDONED if self.left_behind else Fate.COMPLETE

    @property
    def is_there(self) -> bool:
        """Whether it is in the store, of use or not."""
        return self.fate not in {Fate.FAILED, Fate.REMOVED}


@dataclass(frozen=True, order=True, slots=True)
class Start:
    """Where an attempt went on."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class _Later:
    """What is told of a checkpoint by others than who wrote it."""

    restored_by: tuple[int, ...] = ()
    passed_over: tuple[UnusableCheckpoint, ...] = ()
    removal: Removal | None = None
    removed_at: datetime | None = None


class CheckpointHistory:
    """All tries to save of one job. Facts are told in order, each once."""

    def __init__(self) -> None:
        self.seq = 0
        """Number of the last fact that was told."""
        self.ended_at: datetime | None = None
        """When the job ended; None while it has not."""
        self._saves: dict[int, CheckpointAttempt] = {}
        self._named: dict[str, int] = {}
        self._fates: dict[str, _Later] = {}
        """By name: what becomes of a checkpoint may be told before its worker's word of it arrives."""
        self._starts: list[Start] = []
        """Those that leave anything behind which no later one does: each goes on from a further step than the one before."""
        self._restoring: set[int] = set()
        self._lost = 0

    def tell(self, seq: int, event: Event) -> None:
        """Let the next fact be known."""
        self.seq = seq
        match event:
            case CheckpointCommitted():
                self._named[event.checkpoint] = seq
                self._saves[seq] = _committed(seq, event)
            case CheckpointFailed(attempt=attempt, step=step, at=at, detail=detail):
                failed = CheckpointAttempt(
                    seq=seq, attempt=attempt, step=step, at=at, failure=detail or "failed"
                )
                self._saves[seq] = failed
            case TrainingStarted():
                self._begun(event)
            case CheckpointsRemoved(checkpoints=names, removal=removal, at=at):
                for name in names:
                    self._change(name, removal=removal, removed_at=at)
            case RestoreStarted(attempt=attempt) if attempt > self._lost:
                self._restoring.add(attempt)
            case WorkerLeft(attempt=attempt):
                self._restoring.discard(attempt)
            case CapacityLost(attempt=attempt):
                self._lost = max(self._lost, attempt)
                self._restoring = {other for other in self._restoring if other > attempt}
            case Finished(at=at):
                self.ended_at = at
                self._restoring.clear()
            case _:
                pass

    def is_removed(self, name: str) -> bool:
        """Whether it was told that a checkpoint is gone, also one of which nobody had told before."""
        fate = self._fates.get(name)
        return fate is not None and fate.removal is not None

    @property
    def is_restoring(self) -> bool:
        """Whether a placement looks for a checkpoint, or reads one, as far as was told."""
        return bool(self._restoring)

    def all(self) -> list[CheckpointAttempt]:
        """Every try, newest first."""
        saves = map(self._placed, self._saves.values())
        return sorted(saves, key=lambda save: (save.at, save.seq), reverse=True)

    def there(self) -> list[CheckpointAttempt]:
        """Those that are in the store, as far as was told."""
        named = self._named.items()
        return [self._placed(self._saves[seq]) for name, seq in named if not self.is_removed(name)]

    def forget_the_rest(self) -> None:
        """Remember of what is not in the store only that it is not: for who keeps this in mind for a long time."""
        kept = {name: seq for name, seq in self._named.items() if not self.is_removed(name)}
        self._saves = {seq: self._saves[seq] for seq in kept.values()}
        self._named = kept
        self._fates = {
            name: fate if name in kept else _Later(removal=fate.removal)
            for name, fate in self._fates.items()
        }

    def find(self, name: str) -> CheckpointAttempt | None:
        """The try that made a checkpoint; None if nobody told of it."""
        seq = self._named.get(name)
        return None if seq is None else self._placed(self._saves[seq])

    def newest(self) -> CheckpointAttempt | None:
        """What a resume would go on from: the furthest step that is complete. None: it would begin at the beginning."""
        whole = (save for save in self.all() if save.fate is Fate.COMPLETE)
        return max(whole, key=lambda save: (save.step, save.attempt), default=None)

    def _begun(self, event: TrainingStarted) -> None:
        self._restoring.discard(event.attempt)
        self._went_on(Start(event.attempt, event.step))
        if name := event.restored_from:
            self._change(name, restored_by=(*self._fate(name).restored_by, event.attempt))
        for over in event.passed_over:
            found = UnusableCheckpoint(event.attempt, over.reason)
            known = self._fate(over.checkpoint).passed_over
            self._change(over.checkpoint, passed_over=(*known, found))

    def _went_on(self, start: Start) -> None:
        """Keep a start, unless one that is no earlier leaves as much behind; and those that it leaves any use."""
        if any(s.attempt >= start.attempt and s.step <= start.step for s in self._starts):
            return
        useful = (s for s in self._starts if s.attempt > start.attempt or s.step < start.step)
        self._starts = sorted((*useful, start))

    def _fate(self, name: str) -> _Later:
        return self._fates.get(name, _Later())

    def _change(self, name: str, **words: Any) -> None:
        self._fates[name] = replace(self._fate(name), **words)

    def _placed(self, save: CheckpointAttempt) -> CheckpointAttempt:
        """With what became of it."""
        later = bisect.bisect_left(self._starts, Start(save.attempt + 1, 0))
        # Of all later ones, the first went on from the lowest step.
        first = self._starts[later] if later < len(self._starts) else None
        cut = first if first and first.step < save.step else None
        fate = self._fates.get(save.name or "")
        if fate is None:
            return replace(save, left_behind=cut) if cut else save
        return replace(
            save,
            left_behind=cut,
            restored_by=fate.restored_by,
            passed_over=fate.passed_over,
            removal=fate.removal,
            removed_at=fate.removed_at,
        )


def _committed(seq: int, event: CheckpointCommitted) -> CheckpointAttempt:
    return CheckpointAttempt(
        seq=seq,
        attempt=event.attempt,
        step=event.step,
        at=event.at,
        name=event.checkpoint,
        taken_at=event.snapshot_at,
        size_bytes=event.size_bytes,
        stall_ms=event.stall_ms,
        upload_ms=event.upload_ms,
        weights_sha256=event.weights_sha256,
        metrics=event.metrics,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveHealth:
    """What is known of a job's checkpoints, whichever attempt told it."""

    guarantee: ConsistencyGuarantee | None = None
    """What the store promises; None until a worker has asked it."""
    interval: Interval | None = None
    """How often it saves; None until that was measured, and where the job file says how often."""
    trouble: str = ""
    """That it cannot save any more, and what follows; empty as long as nobody said so, and after the next checkpoint."""

    def after(self, event: WorkerFact) -> SaveHealth:
        """The same after one more fact."""
        match event:
            case RestoreStarted(guarantee=guarantee):
                return replace(self, guarantee=guarantee or self.guarantee)
            case CheckpointCommitted(interval=interval):
                return replace(self, interval=interval, trouble="")
            case SavingFailed():
                return replace(self, trouble=_trouble(event))
            case _:
                return self


def _trouble(event: SavingFailed) -> str:
    safe = f"step {event.safe_step:,} is the last" if event.safe_step else "none"
    follows = "stopped for it" if event.policy is OnFailure.STOP else "trains on and tries again"
    return (
        f"{event.failures} checkpoints in a row could not be saved, and {safe} that is safe; "
        f"attempt {event.attempt} {follows}: {event.detail}"
    )
