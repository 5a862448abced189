"""Metric series of a job over all its attempts, reduced to a number of buckets.

Points beyond the step up to which an attempt's work counts are *lost*, as in the bill: the work was or must be repeated. They
are kept apart, so that the other points form one continuous series across preemptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.domain.attempts import collect_attempts, retained_steps
from holdfast.domain.events import Event, Finished

MAX_VALUE: Final = 1e300
"""Values of this magnitude or above count as not finite. With a higher bound, a sum of several overflows."""


class Axis(StrEnum):
    """Horizontal axis of a series."""

    STEP = "step"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class SeriesSegment:
    """Consecutive points of one attempt, or a single point."""

    attempt: int
    points: int
    """Number of finite values."""
    not_finite: int
    mean: float | None
    """Mean of the finite values, as are `low` and `high`; None without any."""
    low: float | None
    high: float | None
    first_step: int
    last_step: int
    first_ms: int
    """First time in milliseconds since 1970; `last_ms` likewise."""
    last_ms: int

    def start(self, axis: Axis) -> int:
        """Start on an axis: a step, or milliseconds since 1970."""
        return self.first_step if axis is Axis.STEP else self.first_ms

    def end(self, axis: Axis) -> int:
        """End on an axis, inclusive."""
        return self.last_step if axis is Axis.STEP else self.last_ms


@dataclass(frozen=True, slots=True)
class Bucket:
    """Segments of one attempt that are drawn as one point."""

    segment: SeriesSegment
    is_lost: bool


def retained_steps_by_attempt(facts: Sequence[Event]) -> dict[int, float]:
    """Step up to which the work of each attempt counts, as in the bill.

    It is that of the last start of its ranks, and infinite if no work was lost.
    """
    attempts = collect_attempts(facts, {})
    finished = next((fact for fact in facts if isinstance(fact, Finished)), None)
    steps = retained_steps(attempts, finished)
    return {item.ready.attempt: kept[-1] for item, kept in zip(attempts, steps, strict=True)}


def is_partly_lost(piece: SeriesSegment, limits: Mapping[int, float]) -> bool:
    """Whether only part of a segment is lost, so that its points must be checked individually."""
    return piece.first_step <= limits.get(piece.attempt, math.inf) < piece.last_step


def to_buckets(
    pieces: Iterable[SeriesSegment], limits: Mapping[int, float], axis: Axis, most: int
) -> list[Bucket]:
    """The buckets of a series in order, at most `most` of equal width.

    There is one for each attempt where attempts overlap. A segment is drawn at its middle, and is
    lost if it begins beyond the limit of its attempt.
    """
    given = list(pieces)
    if not given:
        return []
    start = min(piece.start(axis) for piece in given)
    width = (max(piece.end(axis) for piece in given) - start) // most + 1
    groups: dict[tuple[int, int, bool], list[SeriesSegment]] = {}
    for piece in given:
        middle = (piece.start(axis) + piece.end(axis)) // 2
        is_lost = piece.first_step > limits.get(piece.attempt, math.inf)
        groups.setdefault(((middle - start) // width, piece.attempt, is_lost), []).append(piece)
    return [Bucket(merge_segments(groups[key]), key[2]) for key in sorted(groups)]


def merge_segments(pieces: Sequence[SeriesSegment]) -> SeriesSegment:
    """Merge segments of one attempt."""
    points = sum(piece.points for piece in pieces)
    low = min((p.low for p in pieces if p.low is not None), default=None)
    high = max((p.high for p in pieces if p.high is not None), default=None)
    mean = None
    if low is not None and high is not None:
        parts = math.fsum((p.mean or 0.0) * (p.points / points) for p in pieces)
        mean = min(max(parts, low), high)  # Rounding can exceed the bounds.
    return SeriesSegment(
        attempt=pieces[0].attempt,
        points=points,
        not_finite=sum(piece.not_finite for piece in pieces),
        mean=mean,
        low=low,
        high=high,
        first_step=min(piece.first_step for piece in pieces),
        last_step=max(piece.last_step for piece in pieces),
        first_ms=min(piece.first_ms for piece in pieces),
        last_ms=max(piece.last_ms for piece in pieces),
    )


def point_segment(attempt: int, value: float | None, step: int, at_ms: int) -> SeriesSegment:
    """One point as a segment; `value` is None if it was not finite."""
    if value is None or abs(value) >= MAX_VALUE:
        return SeriesSegment(attempt, 0, 1, None, None, None, step, step, at_ms, at_ms)
    return SeriesSegment(attempt, 1, 0, value, value, value, step, step, at_ms, at_ms)
