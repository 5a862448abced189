"""The events of a job by attempt, collected in any order, because reports may be late."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.domain.events import (
    CapacityLost,
    Cause,
    CheckpointCommitted,
    Event,
    Finished,
    NodesReady,
    Outcome,
    PreemptionNoticed,
    PriceChanged,
    RestoreStarted,
    TrainingStarted,
    WorkerLeft,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LatestPoint:
    """The newest point that an attempt reported."""

    step: int
    at: datetime


@dataclass(slots=True)
class Attempt:
    """One attempt with its events."""

    ready: NodesReady
    ended_at: datetime | None = None
    """End of the attempt; None while its nodes run, as far as reported."""
    lost: CapacityLost | None = None
    restore: RestoreStarted | None = None
    training: TrainingStarted | None = None
    worker_exit: WorkerLeft | None = None
    notice: PreemptionNoticed | None = None
    checkpoints: list[CheckpointCommitted] = field(default_factory=list)
    changes: list[PriceChanged] = field(default_factory=list)
    """Price changes in order of arrival."""
    point: LatestPoint | None = None

    @property
    def cause(self) -> Cause | None:
        """Cause of the capacity loss; None while the nodes run or if the job ended with them."""
        return self.lost.cause if self.lost else None

    @property
    def last_step(self) -> int | None:
        """Newest known step; None if it did not train."""
        sources = [*self.checkpoints, self.training, self.worker_exit, self.notice, self.point]
        steps = [item.step for item in sources if item is not None]
        return max(steps) if self.training and steps else None


def collect_attempts(facts: Sequence[Event], reached: Mapping[int, LatestPoint]) -> list[Attempt]:
    """The attempts of a job in order, from all its events and the newest point of each."""
    attempts: dict[int, Attempt] = {}
    for fact in facts:
        if isinstance(fact, NodesReady):
            attempts[fact.attempt] = Attempt(fact, point=reached.get(fact.attempt))
    for fact in facts:
        match fact:
            case Finished(at=at):
                for attempt in attempts.values():
                    attempt.ended_at = attempt.ended_at or at
            case (
                CapacityLost()
                | RestoreStarted()
                | TrainingStarted()
                | WorkerLeft()
                | PreemptionNoticed()
                | CheckpointCommitted()
                | PriceChanged()
            ) if fact.attempt in attempts:
                _apply_event(attempts[fact.attempt], fact)
            case _:
                pass
    return [attempts[number] for number in sorted(attempts)]


def _apply_event(
    attempt: Attempt,
    fact: CapacityLost
    | RestoreStarted
    | TrainingStarted
    | WorkerLeft
    | PreemptionNoticed
    | CheckpointCommitted
    | PriceChanged,
) -> None:
    match fact:
        case CapacityLost(at=at):
            attempt.ended_at, attempt.lost = at, fact
        case RestoreStarted():
            attempt.restore = attempt.restore or fact
        case TrainingStarted():
            attempt.training = attempt.training or fact
        case WorkerLeft():
            attempt.worker_exit = attempt.worker_exit or fact
        case PreemptionNoticed():
            attempt.notice = attempt.notice or fact
        case CheckpointCommitted():
            attempt.checkpoints.append(fact)
        case PriceChanged():
            attempt.changes.append(fact)


def retained_steps(attempts: Sequence[Attempt], finished: Finished | None) -> list[float]:
    """Step up to which the work of each attempt counts; infinite if no work was lost."""
    trainings = [attempt.training for attempt in attempts if attempt.training]
    unusable = {item.checkpoint for training in trainings for item in training.passed_over}
    checkpoints = [c for attempt in attempts for c in attempt.checkpoints]
    committed = max((c.step for c in checkpoints if c.checkpoint not in unusable), default=0)
    standing = bool(attempts) and attempts[-1].ended_at is None
    safe = standing or (finished is not None and finished.outcome is Outcome.SUCCEEDED)
    steps: list[float] = []
    limit: float = math.inf if safe else committed
    for attempt in reversed(attempts):
        steps.append(limit)
        if attempt.training:
            limit = min(limit, attempt.training.step)
        elif limit == math.inf:
            limit = committed  # The attempt runs and has not restored yet; only the committed work is known.
    return steps[::-1]
