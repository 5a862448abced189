"""The median stopping rule of Google Vizier (Golovin et al., KDD 2017, section 3.2.2).

A job is stopped at step s if its best value so far is strictly worse than the median of the running averages, up to step s, of
the jobs that have completed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.domain.metric_series import SeriesSegment

MIN_COMPLETED: Final = 3
"""Completed jobs that the rule needs. A lower value stops jobs for the luck of one other; a higher value stops none in small sweeps."""


STOPPED_EARLY: Final = "stopped early: "
"""Begin of the reason with which the rule cancels a job."""


class StopMode(StrEnum):
    """Which values of a metric are better."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRule:
    """When jobs of a sweep are stopped early."""

    metric: str
    """Name of the logged metric."""
    mode: StopMode = StopMode.MIN
    grace_steps: int = 0
    """Steps before which no job is stopped."""


@dataclass(frozen=True, slots=True)
class MetricProgress:
    """A metric of one job up to a step."""

    step: int
    """Last step with a finite value."""
    best: float
    average: float
    """Mean of all values up to that step."""


def progress(
    segments: Iterable[SeriesSegment], mode: StopMode, until_step: int | None = None
) -> MetricProgress | None:
    """The metric up to a step; None without a value by then."""
    counted = [
        each
        for each in segments
        if each.mean is not None and (until_step is None or each.last_step <= until_step)
    ]
    points = sum(each.points for each in counted)
    if not points:
        return None
    sums = sum((each.mean or 0.0) * each.points for each in counted)
    lows = [each.low for each in counted if each.low is not None]
    highs = [each.high for each in counted if each.high is not None]
    best = min(lows) if mode is StopMode.MIN else max(highs)
    return MetricProgress(max(each.last_step for each in counted), best, sums / points)


def stop_reason(
    rule: StopRule,
    mine: Sequence[SeriesSegment],
    completed: Iterable[Sequence[SeriesSegment]],
) -> str | None:
    """Why a job is stopped now, as a sentence without full stop; None if it continues."""
    reached = progress(mine, rule.mode)
    if reached is None or reached.step < rule.grace_steps:
        return None
    others = [progress(each, rule.mode, reached.step) for each in completed]
    averages = [each.average for each in others if each is not None]
    if len(averages) < MIN_COMPLETED:
        return None
    median = statistics.median(averages)
    is_worse = reached.best > median if rule.mode is StopMode.MIN else reached.best < median
    if not is_worse:
        return None
    return (
        f"{STOPPED_EARLY}its best {rule.metric} by step {reached.step:,} is {reached.best:.6g}, worse than {median:.6g}, the median of "
        f"the averages of {len(averages)} completed jobs of the sweep"
    )
