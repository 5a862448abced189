"""How long a launch takes to start, measured on earlier ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.events.planning import CapacityType
from holdfast.domain.jobfile.spec import Engine
from holdfast.store.market.observations import LaunchStart

MEASURED_PERIOD: Final = timedelta(days=90)
"""Launches of this period count.
A lower value measures few; a higher value measures images and clusters that no longer exist."""
USUAL_START_S: Final[Mapping[Engine, float]] = {
    Engine.LOCAL: 10.0,
    Engine.SLURM: 60.0,
    Engine.SKYPILOT: 360.0,
}
"""Time from a launch to the first step without measurements.
A lower value requests on-demand nodes too late; a higher value too early."""
USUAL_WAIT_S: Final[Mapping[Engine, float]] = {
    Engine.LOCAL: 0.0,
    Engine.SLURM: 0.0,
    Engine.SKYPILOT: 1200.0,
}
"""Time for which on-demand nodes are awaited without measurements. Likewise."""
PRIOR_SAMPLES: Final = 4
"""Measurements that weigh as much as the usual time.
A lower value believes one lucky start; a higher value measures for weeks."""
QUANTILE: Final = 0.9
"""Share of starts that take no longer. A lower value is late more often; a higher value pays for on-demand nodes too early."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StartTimes:
    """How long launches of an engine take."""

    changeover_s: float
    """From a launch to its first step, if its nodes are not awaited."""
    samples: int
    """Launches on which that rests; 0: it is assumed."""
    on_demand_wait_s: float
    """From a launch to its on-demand nodes."""


def start_times(engine: Engine, starts: Sequence[LaunchStart]) -> StartTimes:
    """Measure how long launches take.

    The changeover is the longer one of both capacity types, as a plan needs both. A launch that was denied nodes has waited for them, which is no
    part of the changeover. On Slurm, launches wait in a queue instead of being denied, so that the changeover begins with their nodes.
    """
    trained: dict[CapacityType | None, list[float]] = {}
    waits = []
    for start in starts:
        assert start.ready_at is not None, "launches without nodes measure nothing"
        if start.capacity is CapacityType.ON_DEMAND:
            waits.append(_seconds(start.requested_at, start.ready_at))
        begin = start.ready_at if engine is Engine.SLURM else start.requested_at
        if start.trained_at is not None and not start.is_denied:
            trained.setdefault(start.capacity, []).append(_seconds(begin, start.trained_at))
    every = [time_s for times in trained.values() for time_s in times]
    usual_s = _quantile(every, USUAL_START_S[engine])
    return StartTimes(
        changeover_s=max(_quantile(trained.get(kind, []), usual_s) for kind in CapacityType),
        samples=len(every),
        on_demand_wait_s=_quantile(waits, USUAL_WAIT_S[engine]),
    )


def _seconds(begin: datetime, end: datetime) -> float:
    """Clocks of nodes may be behind."""
    return max(0.0, (end - begin).total_seconds())


def _quantile(measured: Sequence[float], usual_s: float) -> float:
    ordered = sorted([*measured, *[usual_s] * PRIOR_SAMPLES])
    return ordered[math.ceil(QUANTILE * len(ordered)) - 1]
