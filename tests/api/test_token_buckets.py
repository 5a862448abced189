"""Token buckets: a burst, then one request per refilled token; one bucket per caller."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from holdfast.rate_limit import MAX_BUCKETS, LimitClass, RateLimiter, RateLimits
from hypothesis import given
from hypothesis import strategies as st


@dataclass
class ManualClock:
    """A clock that a test advances."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(clock: ManualClock) -> RateLimiter:
    return RateLimiter(clock, RateLimits(spend=30))


def test_burst_up_to_the_limit_then_one_every_two_seconds(
    limiter: RateLimiter, clock: ManualClock
) -> None:
    burst = [limiter.acquire(LimitClass.SPEND, "ada") for _ in range(31)]
    clock.now_s = 1.9
    early = limiter.acquire(LimitClass.SPEND, "ada")
    clock.now_s = 2.0
    next_one = limiter.acquire(LimitClass.SPEND, "ada")

    assert [result.is_allowed for result in burst] == [True] * 30 + [False]
    assert [result.remaining for result in burst[:30]] == list(range(29, -1, -1))
    assert burst[-1].wait_s == pytest.approx(2.0)
    assert not early.is_allowed
    assert early.retry_after_s == 1
    assert next_one.is_allowed


def test_refused_requests_do_not_extend_the_wait(limiter: RateLimiter, clock: ManualClock) -> None:
    for _ in range(1000):
        limiter.acquire(LimitClass.SPEND, "ada")
    clock.now_s = 2.0

    assert limiter.acquire(LimitClass.SPEND, "ada").is_allowed


def test_buckets_are_separate_per_caller_and_class(limiter: RateLimiter) -> None:
    for _ in range(100):
        limiter.acquire(LimitClass.SPEND, "ada")

    assert limiter.acquire(LimitClass.SPEND, "bob").is_allowed
    assert limiter.acquire(LimitClass.ASK, "ada").is_allowed


def test_many_callers_use_bounded_memory(limiter: RateLimiter, clock: ManualClock) -> None:
    for n in range(3 * MAX_BUCKETS):
        clock.now_s += 0.01
        limiter.acquire(LimitClass.FAIL, str(n))

    assert len(limiter._full_at) <= MAX_BUCKETS + 1


@given(st.lists(st.floats(min_value=0, max_value=20), max_size=300), st.integers(1, 200))
def test_any_minute_admits_at_most_twice_the_limit(pauses: list[float], limit: int) -> None:
    clock = ManualClock()
    limiter = RateLimiter(clock, RateLimits(ask=limit))
    passed = []
    for pause_s in pauses:
        clock.now_s += pause_s
        if limiter.acquire(LimitClass.ASK, "ada").is_allowed:
            passed.append(clock.now_s)

    for start_s in passed:
        assert sum(start_s <= at_s < start_s + 60 for at_s in passed) <= 2 * limit
