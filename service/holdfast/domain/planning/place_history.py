"""Observations of a place as a trace, and what is believed of the place from it. Pure.

A placement is available from its begin to its end. A denial, or a loss, holds for the tick in which it happened; between two that follow each other
within an hour nothing is available either. Other ticks are unknown. In a tick with several observations the newest one counts. A place that includes others
has spot nodes if one of these has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.planning.beliefs import Tracker
from holdfast.domain.planning.observations import PlaceObservation
from holdfast.domain.planning.traces import Trace

TICK_S: Final = 600.0
"""Length of a tick of observations.
A lower value leaves most ticks unknown; a higher value hides nodes that are lost soon."""
BELIEF_PERIOD: Final = timedelta(days=56)
"""Time whose observations count: eight half-lives of `beliefs.HALF_LIFE_S`.
A lower value forgets what still weighs; a higher value reads more rows for nothing."""
BETWEEN_DENIALS: Final = timedelta(hours=1)
"""Time between denials in which a place counts as unavailable.
A lower value knows less of places that are tried rarely; a higher value takes silence for a denial."""

_States: TypeAlias = NDArray[np.int8]
_UNKNOWN: Final = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceBelief:
    """What is believed of a place, as in `PlaceState`."""

    is_available: bool | None = None
    seen_at: datetime | None = None
    age_s: float = 0.0
    loss: float = 1.0
    returns: float = 1.0
    observations: int = 0


def observed_trace(
    name: str, rows: Iterable[PlaceObservation], since: datetime, until: datetime
) -> Trace:
    """The observations of a place and of all that it includes, in ticks."""
    first, ticks = _tick(since), _tick(until) - _tick(since) + 1
    available, known = np.zeros(ticks, np.bool_), np.zeros(ticks, np.bool_)
    for _, same in groupby(
        sorted(rows, key=lambda row: (row.place, row.at)), lambda row: row.place
    ):
        states = _painted([*same], first, ticks, until)
        available |= states == 1
        known |= states != _UNKNOWN
    return Trace(name, TICK_S, available, known)


def belief_of(rows: Sequence[PlaceObservation], now: datetime) -> PlaceBelief:
    """What is believed of a place, from observations of it and of what it includes."""
    past = [row for row in rows if row.at <= now]
    if not past:
        return PlaceBelief()
    since = max(min(row.at for row in past), now - BELIEF_PERIOD)
    trace = observed_trace("", past, since, now)
    seen = np.flatnonzero(trace.known)
    if not len(seen):
        return PlaceBelief()
    tracker = tracked(trace)
    return PlaceBelief(
        is_available=bool(trace.available[seen[-1]]),
        seen_at=max(now if row.until is None else min(row.until, now) for row in past),
        age_s=tracker.age_s,
        loss=tracker.loss,
        returns=tracker.returns,
        observations=len(past),
    )


def tracked(trace: Trace) -> Tracker:
    """The tracker of a place after all ticks of its trace."""
    tracker = Tracker(trace.gap_s)
    for up, known in zip(trace.available.tolist(), trace.known.tolist(), strict=True):
        if known:
            tracker.see(up=up)
        else:
            tracker.miss()
    return tracker


def runs_of(trace: Trace, place: str, hardware: str, start: datetime) -> list[PlaceObservation]:
    """The known ticks of a trace that begins at `start`, as one observation for each change."""
    states = np.where(trace.known, trace.available.astype(np.int8), _UNKNOWN)
    changes = np.flatnonzero(np.diff(states)) + 1
    bounds = [0, *changes.tolist(), len(states)]
    return [
        PlaceObservation(
            place=place,
            hardware=hardware,
            at=start + timedelta(seconds=begin * trace.gap_s),
            until=start + timedelta(seconds=end * trace.gap_s),
            is_available=bool(states[begin]),
        )
        for begin, end in pairwise(bounds)
        if states[begin] != _UNKNOWN
    ]


def tick_start(moment: datetime) -> datetime:
    """The begin of the tick of a moment."""
    return datetime.fromtimestamp(_tick(moment) * TICK_S, UTC)


def _tick(moment: datetime) -> int:
    return math.floor(moment.timestamp() / TICK_S)


def _painted(rows: Sequence[PlaceObservation], first: int, ticks: int, until: datetime) -> _States:
    """The states of one place in each tick; `rows` are in order of time."""
    states = np.full(ticks, _UNKNOWN, np.int8)
    denied_at: datetime | None = None
    for row in rows:
        begin, end = _tick(row.at) - first, _last_tick(row, until) - first
        if denied_at and not row.is_available and row.at - denied_at <= BETWEEN_DENIALS:
            begin = min(begin, _tick(denied_at) - first)
        if end >= 0:
            states[max(begin, 0) : end + 1] = int(row.is_available)
        denied_at = None if row.is_available else (row.until or row.at)
    return states


def _last_tick(row: PlaceObservation, until: datetime) -> int:
    """The last tick that an observation concerns: its end is not part of it, but its begin is."""
    if row.until is None or row.until > until:
        return _tick(until)
    return max(_tick(row.at), math.ceil(row.until.timestamp() / TICK_S) - 1)
