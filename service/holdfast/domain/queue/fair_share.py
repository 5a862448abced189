"""Fair share: who has used how much in the last days.

A user's usage is accelerator time, which loses half its weight every three days, as in Slurm's multifactor priority
(`PriorityDecayHalfLife`). It accrues while a job holds a share, not only while it has nodes: a share keeps others waiting either way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.events.values import Demand

HALF_LIFE: Final = timedelta(days=3)
"""Time after which usage counts half. A lower value forgives heavy use within hours; a higher value makes a user pay for weeks."""
EXPECTED_RUN: Final = timedelta(hours=8)
"""Time for which an admitted job counts in advance. A lower value gives all room that is free at a moment to one user; a
higher value lets running jobs weigh more than past ones."""


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
