"""The current termination notice of a job, and the progress of its worker's shutdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from holdfast.domain.events import (
    CapacityLost,
    CheckpointCommitted,
    Event,
    Finished,
    NodeLost,
    Paused,
    PreemptionNoticed,
    WorkerLeft,
)


class NoticePhase(StrEnum):
    """Phase of a worker between a termination notice and the loss of its nodes."""

    NOTICED = "noticed"
    """The job saves no checkpoints and trains until its nodes are gone."""
    SAVING = "saving"
    """The last checkpoint is not durable yet."""
    LEAVING = "leaving"
    """The last checkpoint is durable, or the worker has exited."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A termination notice whose nodes are not lost yet."""

    at: datetime
    left_s: float | None
    """Seconds from `at` until the nodes stop; None if the notice did not state it."""
    step: int
    phase: NoticePhase


def notice_of(facts: Iterable[Event], *, saves: bool) -> Notice | None:
    """The current notice of a job, or None; `saves` is whether the job has a checkpoint store."""
    noticed: PreemptionNoticed | None = None
    has_left, gone = False, 0  # The newest attempt whose nodes are lost.
    for fact in facts:
        match fact:
            case PreemptionNoticed() if fact.attempt > (noticed.attempt if noticed else gone):
                noticed, has_left = fact, False
            case CheckpointCommitted() if noticed and fact.attempt == noticed.attempt:
                has_left = has_left or fact.step >= noticed.step
            case WorkerLeft() if noticed and fact.attempt == noticed.attempt:
                has_left = True
            case CapacityLost():
                gone = max(gone, fact.attempt)
                noticed = None if noticed and noticed.attempt <= gone else noticed
            case NodeLost() if noticed and fact.attempt == noticed.attempt:
                noticed = None  # The other nodes run without a notice.
            case Finished() | Paused():
                noticed = None
            case _:
                pass
    if noticed is None:
        return None
    waits = NoticePhase.SAVING if saves else NoticePhase.NOTICED
    phase = NoticePhase.LEAVING if has_left else waits
    return Notice(noticed.at, noticed.left_s, noticed.step, phase)
