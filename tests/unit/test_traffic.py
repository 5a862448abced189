"""Buckets: so many at once, then one as each place fills again, and nobody's for another."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from holdfast.api.rate_limit import MOST_KEYS, LimitClass, RateLimiter, RateLimits
from hypothesis import given
from hypothesis import strategies as st


@dataclass
class Time:
    """Seconds that are told to go on."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def traffic(time: Time) -> RateLimiter:
    return RateLimiter(time, RateLimits(spend=30))


def test_as_many_as_the_limit_may_come_at_once_and_then_one_every_two_seconds(
    traffic: RateLimiter, time: Time
) -> None:
    burst = [traffic.take(LimitClass.SPEND, "ada") for _ in range(31)]
    time.now_s = 1.9
    early = traffic.take(LimitClass.SPEND, "ada")
    time.now_s = 2.0
    next_one = traffic.take(LimitClass.SPEND, "ada")

    assert [taken.passes for taken in burst] == [True] * 30 + [False]
    assert [taken.left for taken in burst[:30]] == list(range(29, -1, -1))
    assert burst[-1].wait_s == pytest.approx(2.0)
    assert not early.passes
    assert early.retry_after_s == 1
    assert next_one.passes


def test_who_is_refused_is_not_refused_for_longer_by_asking(
    traffic: RateLimiter, time: Time
) -> None:
    for _ in range(1000):
        traffic.take(LimitClass.SPEND, "ada")
    time.now_s = 2.0

    assert traffic.take(LimitClass.SPEND, "ada").passes


def test_nobody_takes_the_place_of_another_nor_of_another_kind(traffic: RateLimiter) -> None:
    for _ in range(100):
        traffic.take(LimitClass.SPEND, "ada")

    assert traffic.take(LimitClass.SPEND, "bob").passes
    assert traffic.take(LimitClass.ASK, "ada").passes


def test_who_sends_from_everywhere_fills_no_memory(traffic: RateLimiter, time: Time) -> None:
    for n in range(3 * MOST_KEYS):
        time.now_s += 0.01
        traffic.take(LimitClass.FAIL, str(n))

    assert len(traffic._full_at) <= MOST_KEYS + 1


@given(st.lists(st.floats(min_value=0, max_value=20), max_size=300), st.integers(1, 200))
def test_no_minute_lets_pass_more_than_twice_the_limit(pauses: list[float], limit: int) -> None:
    time = Time()
    traffic = RateLimiter(time, RateLimits(ask=limit))
    passed = []
    for pause_s in pauses:
        time.now_s += pause_s
        if traffic.take(LimitClass.ASK, "ada").passes:
            passed.append(time.now_s)

    for start_s in passed:
        assert sum(start_s <= at_s < start_s + 60 for at_s in passed) <= 2 * limit
