"""The queue as recorded: waiting and admitted jobs, and what their owners have used.

A user's usage is accelerator time, which loses half its weight every three days, as in Slurm's multifactor priority
(`PriorityDecayHalfLife`). It accrues while a job holds a share, not only while it has nodes: a share keeps others waiting either way.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.events.values import Demand
from holdfast.domain.queue.quotas import Quota

HALF_LIFE: Final = timedelta(days=3)
"""Time after which usage counts half. A lower value forgives heavy use within hours; a higher value makes a user pay for weeks."""
EXPECTED_RUN: Final = timedelta(hours=8)
"""Time for which an admitted job counts in advance. A lower value gives all room that is free at a moment to one user; a
higher value lets running jobs weigh more than past ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueEntry:
    """A job that waits for its admission, or holds a share."""

    job_id: str
    project: str
    owner: str
    priority: int
    queued_at: datetime
    """Since when it waits, or waited."""
    demand: Demand
    admitted_at: datetime | None = None
    """Since when it holds its share; None while it waits."""
    is_leaving: bool = False
    """Whether it is about to release its share."""
    paused_for: str = ""
    """Id of the waiting job for which it is pausing; empty otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueState:
    """All that the order and the admissions follow from."""

    at: datetime
    quotas: tuple[Quota, ...] = ()
    waiting: tuple[QueueEntry, ...] = ()
    holding: tuple[QueueEntry, ...] = ()
    used: Mapping[str, float] = field(default_factory=dict)
    """Decayed accelerator hours of shares that are no longer held, by owner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecayedUsage:
    """Usage of a user at a time, in accelerator hours."""

    gpu_hours: float
    at: datetime

    def decayed(self, now: datetime) -> float:
        """What counts of it now."""
        return self.gpu_hours * math.exp2(-max(timedelta(), now - self.at) / HALF_LIFE)


def weight(demand: Demand) -> int:
    """Accelerators of a share; a job without any counts its nodes."""
    return demand.gpus or demand.nodes


def held_gpu_hours(demand: Demand, since: datetime, now: datetime) -> float:
    """What counts now of a share that is held since then: the integral of the decayed weight."""
    span = max(timedelta(), now - since)
    rate_hours = HALF_LIFE / timedelta(hours=1) / math.log(2)
    return weight(demand) * rate_hours * -math.expm1(-math.log(2) * (span / HALF_LIFE))


def usage_by_owner(state: QueueState) -> dict[str, float]:
    """What counts of each owner's usage now, in accelerator hours, with held shares."""
    used = defaultdict[str, float](float, state.used)
    for each in state.holding:
        assert each.admitted_at is not None, "it holds a share"
        used[each.owner] += held_gpu_hours(each.demand, each.admitted_at, state.at)
    return dict(used)
