"""Survival rates and curves against published values and against their definitions."""

from __future__ import annotations

import math

import pytest
from holdfast.domain.preemptions.survival import (
    SurvivalPoint,
    mean_minutes,
    poisson_interval,
    survival,
)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0, 2.996), (1, 0.051, 4.744), (5, 1.970, 10.513), (10, 5.425, 16.962), (100, 84.139, 118.079)],
)  # fmt: skip
def test_confidence_interval_matches_chi_square_tables(count: int, low: float, high: float) -> None:
    assert poisson_interval(count) == pytest.approx((low, high), abs=0.001)


@pytest.mark.parametrize("count", [1, 4, 37, 1000, 100_000])
def test_interval_tails_hold_five_percent_each(count: int) -> None:
    low, high = poisson_interval(count)

    def chance(mean: float, upto: int) -> float:
        terms = (i * math.log(mean) - mean - math.lgamma(i + 1) for i in range(upto + 1))
        return math.fsum(math.exp(term) for term in terms)

    assert chance(high, count) == pytest.approx(0.05, rel=1e-6)
    assert 1 - chance(low, count - 1) == pytest.approx(0.05, rel=1e-6)


def test_censored_placements_count_until_they_leave() -> None:
    # Ten attempts run. Two are preempted after 10 minutes, four are done after 20, one is
    # preempted after 30, three run for 40.
    curve = survival([(40, 0, 3), (10, 2, 0), (20, 0, 4), (30, 1, 0)])

    assert curve == [
        SurvivalPoint(10, pytest.approx(0.8), 10, 2),
        SurvivalPoint(30, pytest.approx(0.6), 4, 1),
    ]


def test_mean_divides_total_time_by_preempted_placements() -> None:
    # Twelve attempts run: five are preempted after 10 minutes, one after 40, and six end
    # otherwise after 20.
    assert mean_minutes([(10, 5, 0), (40, 1, 0), (20, 0, 6)]) == (50 + 40 + 120) / 6
    assert mean_minutes([(10, 4, 0), (20, 0, 6)]) is None
    assert mean_minutes([(0, 9, 0)]) is None
    assert mean_minutes([]) is None


def test_curve_without_losses_or_placements_is_empty() -> None:
    assert survival([(10, 0, 5)]) == []
    assert survival([]) == []
