"""The curve of a value that a job measured: one over all its attempts, in as few buckets as somebody wants to look at.

What an attempt did beyond the step up to which its work counts is *lost*, as in the bill: it was done again, or would have to
be. Those points are told apart, so that the others make one curve that goes on through every preemption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.domain.attempts import gather, without_discarded
from holdfast.domain.events import Event, Finished

HUGE: Final = 1e300
"""A value of this size or above counts as not finite. Bigger: a sum of some of them is more than a float can hold."""


class Axis(StrEnum):
    """What a curve is drawn over."""

    STEP = "step"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Piece:
    """Points of one attempt that follow each other; or but one."""

    attempt: int
    points: int
    """Those whose value is finite."""
    not_finite: int
    mean: float | None
    """Of the finite ones, as are the next two; None where there are none."""
    low: float | None
    high: float | None
    first_step: int
    last_step: int
    first_ms: int
    """Since 1970, as is the next one."""
    last_ms: int

    def begin(self, axis: Axis) -> int:
        """Where it begins: a step, or milliseconds since 1970."""
        return self.first_step if axis is Axis.STEP else self.first_ms

    def end(self, axis: Axis) -> int:
        """Where it ends, itself included."""
        return self.last_step if axis is Axis.STEP else self.last_ms


@dataclass(frozen=True, slots=True)
class Bucket:
    """Pieces of one attempt that are drawn as one point."""

    piece: Piece
    is_lost: bool


def limits_of(facts: Sequence[Event]) -> dict[int, float]:
    """The step up to which the work of each attempt counts, as in the bill; infinite where nothing of it was lost."""
    attempts = gather(facts, {})
    finished = next((fact for fact in facts if isinstance(fact, Finished)), None)
    steps = without_discarded(attempts, finished)
    return {item.ready.attempt: step for item, step in zip(attempts, steps, strict=True)}


def is_cut(piece: Piece, limits: Mapping[int, float]) -> bool:
    """Whether only some of a piece is lost, so that its points must be looked at one by one."""
    return piece.first_step <= limits.get(piece.attempt, math.inf) < piece.last_step


def curve(
    pieces: Iterable[Piece], limits: Mapping[int, float], axis: Axis, most: int
) -> list[Bucket]:
    """The buckets of a curve in order: at most `most` of equal width, and where attempts meet in one, one for each.

    A piece is drawn where its middle is, and is lost if it begins beyond the limit of its attempt.
    """
    given = list(pieces)
    if not given:
        return []
    start = min(piece.begin(axis) for piece in given)
    width = (max(piece.end(axis) for piece in given) - start) // most + 1
    heaps: dict[tuple[int, int, bool], list[Piece]] = {}
    for piece in given:
        middle = (piece.begin(axis) + piece.end(axis)) // 2
        is_lost = piece.first_step > limits.get(piece.attempt, math.inf)
        heaps.setdefault(((middle - start) // width, piece.attempt, is_lost), []).append(piece)
    return [Bucket(merged(heaps[key]), key[2]) for key in sorted(heaps)]


def merged(pieces: Sequence[Piece]) -> Piece:
    """Pieces of one attempt as one."""
    points = sum(piece.points for piece in pieces)
    low = min((p.low for p in pieces if p.low is not None), default=None)
    high = max((p.high for p in pieces if p.high is not None), default=None)
    mean = None
    if low is not None and high is not None:
        parts = math.fsum((p.mean or 0.0) * (p.points / points) for p in pieces)
        mean = min(max(parts, low), high)  # Rounding leads out of bounds.
    return Piece(
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


def point(attempt: int, value: float | None, step: int, at_ms: int) -> Piece:
    """One point as a piece; `value` None where it was not finite."""
    if value is None or abs(value) >= HUGE:
        return Piece(attempt, 0, 1, None, None, None, step, step, at_ms, at_ms)
    return Piece(attempt, 1, 0, value, value, value, step, step, at_ms, at_ms)
