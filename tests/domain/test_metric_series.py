"""A series is summarized in a few buckets, which contain every point once."""

from __future__ import annotations

import math

from holdfast.domain.events import Outcome
from holdfast.domain.metric_series import (
    MAX_VALUE,
    Axis,
    SeriesSegment,
    is_partly_lost,
    merge_segments,
    point_segment,
    retained_steps_by_attempt,
    to_buckets,
)
from hypothesis import given
from hypothesis import strategies as st
from support.events import finished, launched, lost, ready, saved, submitted, training

FINITE = st.floats(-MAX_VALUE / 2, MAX_VALUE / 2)
POINTS = st.lists(
    st.builds(
        point_segment,
        st.integers(1, 3),
        st.none() | FINITE | st.sampled_from([MAX_VALUE, -1e308]),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**50),
    ),
    max_size=40,
)
LIMITS = st.dictionaries(st.integers(1, 3), st.integers(0, 2**63 - 1) | st.just(math.inf))


@given(pieces=POINTS, limits=LIMITS, axis=st.sampled_from(Axis), most=st.integers(1, 20))
def test_every_point_is_in_one_bucket(
    pieces: list[SeriesSegment], limits: dict[int, float], axis: Axis, most: int
) -> None:
    buckets = to_buckets(pieces, limits, axis, most)

    assert sum(b.segment.points for b in buckets) == sum(p.points for p in pieces)
    assert sum(b.segment.not_finite for b in buckets) == sum(p.not_finite for p in pieces)
    lost_ones = [p for p in pieces if p.first_step > limits.get(p.attempt, math.inf)]
    assert sum(b.segment.points for b in buckets if b.is_lost) == sum(p.points for p in lost_ones)


@given(pieces=POINTS, axis=st.sampled_from(Axis), most=st.integers(1, 20))
def test_buckets_do_not_exceed_the_requested_number(
    pieces: list[SeriesSegment], axis: Axis, most: int
) -> None:
    mine = [piece for piece in pieces if piece.attempt == 1]

    buckets = to_buckets(mine, {}, axis, most)

    assert len(buckets) <= most
    ends = [(b.segment.start(axis), b.segment.end(axis)) for b in buckets]
    assert ends == sorted(ends)


@given(pieces=POINTS.filter(len))
def test_a_mean_lies_between_low_and_high(pieces: list[SeriesSegment]) -> None:
    whole = merge_segments(pieces)

    if whole.points:
        assert whole.low is not None
        assert whole.mean is not None
        assert whole.high is not None
        assert whole.low <= whole.mean <= whole.high
    else:
        assert whole.low is whole.mean is whole.high is None


def test_series_without_points_is_empty() -> None:
    assert to_buckets([], {}, Axis.STEP, 10) == []


def test_partially_lost_block_is_detected() -> None:
    piece = SeriesSegment(1, 10, 0, 1.0, 1.0, 1.0, 100, 109, 0, 9)

    assert [is_partly_lost(piece, {1: limit}) for limit in (99, 100, 108, 109, math.inf)] == [
        *(False, True, True, False, False)
    ]
    assert not is_partly_lost(piece, {2: 105})


def test_work_counts_up_to_the_next_attempts_start() -> None:
    events = [submitted(), launched(1), ready(2), training(3), lost(20)]
    events += [ready(30, attempt=2), training(31, attempt=2, step=40)]

    assert retained_steps_by_attempt(events) == {1: 40, 2: math.inf}


def test_failed_job_retains_only_steps_up_to_checkpoint() -> None:
    events = [submitted(), launched(1), ready(2), training(3), saved(10, step=25)]

    assert retained_steps_by_attempt([*events, finished(20, Outcome.FAILED, exit_code=1)]) == {
        1: 25
    }
    assert retained_steps_by_attempt([*events, finished(20)]) == {1: math.inf}
