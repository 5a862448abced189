"""What a price was over a time: the lowest, the highest, and what it was on average. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.domain.quotes import Change

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Range:
    """Micro-dollars an hour."""

    lowest: int
    mean: int
    """Weighted by how long each price held."""
    highest: int


def range_of(changes: Sequence[Change], since: datetime, until: datetime) -> Range | None:
    """Between what a price lay from `since`, or from its first change, until `until`; None where nothing is known of it."""
    held = [change for change in changes if change.at < until]
    if not held:
        return None
    begins = [max(change.at, since) for change in held]
    spans = [(end - begin) // _MS for begin, end in itertools.pairwise([*begins, until])]
    # One that was over before the time began holds for nothing of it.
    lasting = [
        (change.micros_per_hour, span) for change, span in zip(held, spans, strict=True) if span > 0
    ]
    if not lasting:
        return None
    prices = [micros for micros, _ in lasting]
    paid = sum(micros * span for micros, span in lasting)
    return Range(min(prices), paid // sum(span for _, span in lasting), max(prices))
