"""The median stopping rule."""

from __future__ import annotations

import pytest
from holdfast.domain.metric_series import SeriesSegment
from holdfast.domain.sweeps.median_rule import StopMode, StopRule, progress, stop_reason


def series(*values: float) -> list[SeriesSegment]:
    """One value at each of the steps 10, 20, ..."""
    return [
        SeriesSegment(
            attempt=1,
            points=1,
            not_finite=0,
            mean=value,
            low=value,
            high=value,
            first_step=10 * number,
            last_step=10 * number,
            first_ms=0,
            last_ms=0,
        )
        for number, value in enumerate(values, start=1)
    ]


COMPLETED = [series(4, 2, 0), series(6, 4, 2), series(8, 6, 4)]
"""Running averages by step 20: 3, 5 and 7."""


@pytest.mark.parametrize(
    ("values", "is_stopped"),
    [((9, 6), True), ((9, 5.1), True), ((9, 5), False), ((4.9, 9), False)],
)
def test_best_value_is_compared_with_the_median_average(
    values: tuple[float, ...], is_stopped: bool
) -> None:
    why = stop_reason(StopRule(metric="loss"), series(*values), COMPLETED)

    assert (why is not None) is is_stopped
    if why:
        assert "by step 20 is" in why
        assert "worse than 5, the median of the averages of 3 completed jobs" in why


def test_higher_values_may_be_better() -> None:
    rule = StopRule(metric="accuracy", mode=StopMode.MAX)

    assert stop_reason(rule, series(1, 4.9), COMPLETED)
    assert stop_reason(rule, series(1, 5), COMPLETED) is None


def test_rule_waits_for_its_grace_and_for_completed_jobs() -> None:
    bad = series(9, 9)

    assert stop_reason(StopRule(metric="loss", grace_steps=21), bad, COMPLETED) is None
    assert stop_reason(StopRule(metric="loss", grace_steps=20), bad, COMPLETED)
    assert stop_reason(StopRule(metric="loss"), bad, COMPLETED[:2]) is None
    assert stop_reason(StopRule(metric="loss"), [], COMPLETED) is None
    assert progress([], StopMode.MIN) is None
