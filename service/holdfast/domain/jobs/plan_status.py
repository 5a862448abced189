"""The plan of a job and the speed of its training, as far as its events show them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from holdfast.domain.events import (
    CapacityType,
    CheckpointCommitted,
    Planned,
    PlanReason,
    RanksRestarted,
    TrainingStarted,
    WorkerFact,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStatus:
    """The newest plan."""

    at: datetime
    """When it was made."""
    capacity: CapacityType | None
    """What the job runs on, or asks for; None: it waits without a request."""
    places: tuple[str, ...]
    reason: PlanReason
    since: datetime
    """Since when it chooses this capacity and the first of these places."""
    net_at: datetime | None = None
    """When on-demand nodes must be requested at the latest if nothing is saved until then."""
    changeover_s: float = 0.0
    late: float | None = None
    """Probability of missing the deadline; None if it was not forecast."""
    is_doubtful: bool = False
    """Whether users were notified that the deadline may be missed, and it has not become likely again."""

    @property
    def waits(self) -> bool:
        """Whether the job waits for spot nodes because it can afford to."""
        return self.capacity is not CapacityType.ON_DEMAND


DOUBTFUL: Final = 0.1
"""Probability of missing the deadline at which users are notified.
A lower value warns of what mostly turns out well; a higher value warns too late to act."""
CALM: Final = 0.05
"""Probability below which the next warning is possible again. A higher value warns again and again."""


def plan_after(before: PlanStatus | None, event: Planned) -> PlanStatus:
    """The plan after a new one."""
    place = event.places[:1]
    is_same = before and (before.capacity, before.places[:1]) == (event.capacity, place)
    return PlanStatus(
        at=event.at,
        capacity=event.capacity,
        places=event.places,
        reason=event.reason,
        since=before.since if before and is_same else event.at,
        net_at=event.net_at,
        changeover_s=event.changeover_s,
        late=event.forecast.late if event.forecast else None,
        is_doubtful=event.warns or (is_doubtful(before) and not _is_calm(event)),
    )


def with_warning(before: PlanStatus | None, planned: Planned) -> Planned:
    """A plan with a forecast; it warns if users are to be notified of a doubtful deadline."""
    forecast = planned.forecast
    if forecast is None or forecast.late < DOUBTFUL or is_doubtful(before):
        return planned
    return replace(planned, warns=True)


def is_doubtful(plan: PlanStatus | None) -> bool:
    """Whether users know that the deadline may be missed."""
    return plan is not None and plan.is_doubtful


def _is_calm(event: Planned) -> bool:
    return event.forecast is not None and event.forecast.late < CALM


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Training time of steps, from the start of training and from checkpoint to checkpoint.

    Steps that were lost and repeated count twice, with their time.
    """

    steps: int = 0
    ms: int = 0
    interval_ms: int = 0
    """Between the newest two complete checkpoints of an attempt, or from its start to the first."""
    restored_step: int = 0
    """The furthest step that an attempt restored from the store, also from the checkpoints of the job's parent."""
    attempt: int = 0
    from_step: int = 0
    since: datetime | None = None
    """When `from_step` was reached in `attempt`; None if it does not train."""

    @property
    def step_s(self) -> float | None:
        """Mean time of a step in seconds; None before the first was measured."""
        return self.ms / 1000 / self.steps if self.steps and self.ms else None

    def after(self, event: WorkerFact) -> Pace:
        """The pace after an event of a worker."""
        if event.attempt < self.attempt:
            return self
        match event:
            case TrainingStarted(attempt=attempt, step=step, at=at):
                is_stored = event.restored_from is not None and event.held_at is None
                restored = max(self.restored_step, step * is_stored)
                return replace(
                    self, restored_step=restored, attempt=attempt, from_step=step, since=at
                )
            case RanksRestarted(attempt=attempt):
                return replace(self, attempt=attempt, since=None)
            case CheckpointCommitted(attempt=self.attempt, step=step, snapshot_at=at) if self.since:
                reached = self.until(event.attempt, step, at)
                return replace(reached, interval_ms=reached.ms - self.ms or self.interval_ms)
            case _:
                return self

    def until(self, attempt: int, step: int, at: datetime) -> Pace:
        """The pace as of a step that was reported after the newest checkpoint, if it trains."""
        if self.since is None or attempt != self.attempt:
            return self
        steps, ms = step - self.from_step, int((at - self.since).total_seconds() * 1000)
        if steps <= 0 or ms <= 0:
            return self
        return replace(self, steps=self.steps + steps, ms=self.ms + ms, from_step=step, since=at)
