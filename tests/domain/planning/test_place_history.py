"""Observations of a place become a trace, and beliefs from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest
from holdfast.domain.planning.beliefs import Tracker
from holdfast.domain.planning.observations import PlaceObservation
from holdfast.domain.planning.place_history import (
    BELIEF_PERIOD,
    TICK_S,
    PlaceBelief,
    belief_of,
    observed_trace,
    runs_of,
    tick_start,
    tracked,
)
from holdfast.domain.planning.traces import Trace, parse_json
from support.events import at

ZONE = "aws/us-east-1/us-east-1a"


def seen(begin: float, end: float | None, *, up: bool, place: str = ZONE) -> PlaceObservation:
    """An observation between two times, given in ticks."""
    return PlaceObservation(
        place=place,
        hardware="a100:8",
        at=at(begin * TICK_S),
        until=None if end is None else at(end * TICK_S),
        is_available=up,
    )


def denied(tick: float, place: str = ZONE) -> PlaceObservation:
    return seen(tick, tick, up=False, place=place)


def states(rows: Sequence[PlaceObservation], ticks: int) -> str:
    """The ticks of a trace: 1 available, 0 not available, - unknown."""
    trace = observed_trace("a", rows, at(0), at((ticks - 1) * TICK_S))
    return text(trace)


def text(trace: Trace) -> str:
    known = zip(trace.available, trace.known, strict=True)
    return "".join(("1" if up else "0") if is_known else "-" for up, is_known in known)


@pytest.mark.parametrize(
    ("rows", "ticks"),
    [
        ([], "------"),
        ([denied(2.5)], "--0---"),
        ([seen(1.5, None, up=True)], "-11111"),
        ([seen(1.5, 3.5, up=True), denied(3.5)], "-110--"),
        ([seen(1.5, 3.5, up=True), seen(3.5, 3.5, up=True)], "-111--"),
        ([seen(1, 3, up=True)], "-11---"),
        ([denied(0.5), denied(4.5)], "00000-"),
        ([denied(0.2), seen(0.5, 2.5, up=True), denied(2.5), denied(4)], "11000-"),
        ([denied(1.2), denied(1.4), seen(1.6, None, up=True)], "-11111"),
        ([seen(0, None, up=True), denied(2.5)], "110111"),
        ([seen(-9, 2.5, up=True)], "111---"),
        ([denied(-3), denied(-1)], "------"),
        ([seen(2, 4, up=False)], "--00--"),
    ],
    ids=[
        "nothing",
        "denial holds for its tick",
        "nodes that stand",
        "loss",
        "release",
        "whole ticks",
        "between denials",
        "between placements",
        "newest in a tick",
        "denial beside standing nodes",
        "begun before",
        "before",
        "recording",
    ],
)
def test_rows_become_ticks(rows: list[PlaceObservation], ticks: str) -> None:
    assert states(rows, 6) == ticks


def test_denials_over_an_hour_apart_leave_a_gap() -> None:
    assert states([denied(0.5), denied(7)], 8) == "0------0"


def test_region_is_available_where_one_zone_is() -> None:
    rows = [
        seen(0, 2, up=True, place="aws/us-east-1/us-east-1a"),
        denied(1.5, "aws/us-east-1/us-east-1b"),
        denied(3, "aws/us-east-1/us-east-1b"),
    ]

    assert states(rows, 5) == "1100-"


def test_trace_can_be_read_back() -> None:
    rows = [denied(0.5), seen(1, 3.2, up=True), denied(3.2), seen(6, None, up=True)]
    trace = observed_trace("us-east-1a", rows, at(0), at(8 * TICK_S))

    again = observed_trace(
        "us-east-1a", runs_of(trace, ZONE, "", tick_start(at(0))), at(0), at(8 * TICK_S)
    )

    assert text(again) == text(trace) == "0110--111"
    known = [
        int(up) if is_known else None
        for up, is_known in zip(trace.available, trace.known, strict=True)
    ]
    body = json.dumps({"metadata": {"gap_seconds": TICK_S}, "data": known})
    assert text(parse_json("us-east-1a", body)) == text(trace)


def test_recording_with_other_ticks_is_sampled() -> None:
    trace = Trace("a", 150.0, np.array([True] * 8 + [False] * 8), np.ones(16, np.bool_))

    assert states(runs_of(trace, ZONE, "", at(0)), 5) == "1100-"


def test_belief_equals_the_tracker_over_the_trace() -> None:
    rows = [denied(0.5), seen(1, 40, up=True), denied(40), seen(43, 80.5, up=True), denied(80.5)]
    now = at(90 * TICK_S)

    belief = belief_of(rows, now)

    tracker = Tracker(TICK_S)
    for state in text(observed_trace("a", rows, at(0), now)):
        if state == "-":
            tracker.miss()
        else:
            tracker.see(up=state == "1")
    assert belief == PlaceBelief(
        is_available=False,
        seen_at=at(80.5 * TICK_S),
        age_s=tracker.age_s,
        loss=tracker.loss,
        returns=tracker.returns,
        observations=5,
    )
    assert belief.loss != 1.0 != belief.returns


def test_standing_nodes_are_seen_now() -> None:
    now = at(90 * TICK_S)

    belief = belief_of([seen(1, None, up=True)], now)

    assert (belief.is_available, belief.seen_at, belief.age_s) == (True, now, 89 * TICK_S)


def test_nothing_is_believed_of_an_unknown_place() -> None:
    assert belief_of([], at(0)) == PlaceBelief()
    assert belief_of([denied(5)], at(0)) == PlaceBelief()


def test_old_observations_count_no_more() -> None:
    assert belief_of([denied(1)], at(0) + BELIEF_PERIOD + timedelta(days=1)).observations <= 1


def test_tracked_passes_unknown_ticks() -> None:
    trace = Trace("a", TICK_S, np.array([True, False, False]), np.array([True, False, False]))

    assert tracked(trace).age_s == 2 * TICK_S
