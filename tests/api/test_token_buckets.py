"""Token buckets: a burst, then one request per refilled token; buckets of callers are separate."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from holdfast.rate_limit import MAX_BUCKETS, LimitClass, RateLimiter, RateLimits
from hypothesis import given
from hypothesis import strategies as st


@dataclass
class Time:
    """A clock that a test advances."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def traffic(time: Time) -> RateLimiter:
    return RateLimiter(time, RateLimits(spend=30))


def test_burst_up_to_the_limit_then_one_every_two_seconds(traffic: RateLimiter, time: Time) -> None:
    burst = [traffic.acquire(LimitClass.SPEND, "ada") for _ in range(31)]
    time.now_s = 1.9
    early = traffic.acquire(LimitClass.SPEND, "ada")
    time.now_s = 2.0
    next_one = traffic.acquire(LimitClass.SPEND, "ada")

    assert [taken.is_allowed for taken in burst] == [True] * 30 + [False]
    assert [taken.remaining for taken in burst[:30]] == list(range(29, -1, -1))
    assert burst[-1].wait_s == pytest.approx(2.0)
    assert not early.is_allowed
    assert early.retry_after_s == 1
    assert next_one.is_allowed


def test_refused_requests_do_not_extend_the_wait(traffic: RateLimiter, time: Time) -> None:
    for _ in range(1000):
        traffic.acquire(LimitClass.SPEND, "ada")
    time.now_s = 2.0

    assert traffic.acquire(LimitClass.SPEND, "ada").is_allowed


def test_buckets_are_separate_per_caller_and_class(traffic: RateLimiter) -> None:
    for _ in range(100):
        traffic.acquire(LimitClass.SPEND, "ada")

    assert traffic.acquire(LimitClass.SPEND, "bob").is_allowed
    assert traffic.acquire(LimitClass.ASK, "ada").is_allowed


def test_many_callers_use_bounded_memory(traffic: RateLimiter, time: Time) -> None:
    for n in range(3 * MAX_BUCKETS):
        time.now_s += 0.01
        traffic.acquire(LimitClass.FAIL, str(n))

    assert len(traffic._full_at) <= MAX_BUCKETS + 1


@given(st.lists(st.floats(min_value=0, max_value=20), max_size=300), st.integers(1, 200))
def test_no_minute_lets_pass_more_than_twice_the_limit(pauses: list[float], limit: int) -> None:
    time = Time()
    traffic = RateLimiter(time, RateLimits(ask=limit))
    passed = []
    for pause_s in pauses:
        time.now_s += pause_s
        if traffic.acquire(LimitClass.ASK, "ada").is_allowed:
            passed.append(time.now_s)

    for start_s in passed:
        assert sum(start_s <= at_s < start_s + 60 for at_s in passed) <= 2 * limit
