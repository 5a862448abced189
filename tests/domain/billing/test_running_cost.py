"""The running cost read by guards equals the bill, for all launcher clocks."""

from __future__ import annotations

from datetime import timedelta

from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.billing.rate import RateSchedule
from holdfast.domain.billing.running_cost import RETAINED_METERS, Month, RunningCost
from holdfast.domain.events import Event, Finished, PriceChanged
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.guards import trip
from holdfast.domain.jobs.lifecycle import fold
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from support.events import at, finished, launched, lost, ready, submitted

MOMENTS = st.lists(
    st.tuples(st.integers(0, 500_000), st.integers(0, 500_000), st.integers(1, 10**11)), max_size=6
)


@given(MOMENTS, st.booleans(), st.integers(0, 900_000))
def test_running_cost_equals_the_bill_with_overlaps(
    placements: list[tuple[int, int, int]], is_running: bool, now_ms: int
) -> None:
    log: list[Event] = [submitted(100), launched(100)]
    for attempt, (ready_ms, lost_ms, micros) in enumerate(placements, 1):
        log += [ready(ready_ms / 1000, attempt=attempt, micros=micros)]
        log += [lost(lost_ms / 1000, attempt=attempt)]
    if is_running and placements:
        del log[-1]
    now = at(now_ms / 1000)

    for history in (log, [*log, finished(now_ms / 1000)]):
        account, billed = fold("job-1", history).account, compute_bill(history, {}, now)
        assert account.paid_micros_by(now) == billed.paid_micros
        assert account.node_ms_by(now) == billed.ms.total
        ended = isinstance(history[-1], Finished)
        assert not ended or account.paid_micros == billed.paid_micros


def test_overlapping_attempts_are_not_paid_twice() -> None:
    overlapping = [ready(0), lost(10), ready(5, attempt=2), lost(12, attempt=2)]

    one = fold("job-1", [submitted(), launched(), *overlapping])

    assert one.account.node_ms == 12_000
    assert one.account.paid_micros == 12_000


RATES = st.integers(1, 10**11)


@given(
    st.lists(RATES, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 90_000), st.integers(0, 2), RATES), max_size=5),
    st.integers(0, 100_000),
    st.integers(1, 10**9),
)
def test_predicted_time_of_a_cost_is_exact(
    rates: list[int], changes: list[tuple[int, int, int]], now_ms: int, micros: int
) -> None:
    account = RunningCost(free_since=at(0)).opened(
        at(0), 1, tuple(RateSchedule.flat(at(0), r) for r in rates)
    )
    for change_ms, group, rate in changes:
        account = account.with_price_change(1, group, at(change_ms / 1000), rate)
    now = at(max(now_ms, 90_000) / 1000)
    limit = account.paid_micros_by(now) + micros

    due_ms = account.ms_until_paid(limit, now)

    assert due_ms is not None
    assert account.paid_micros_by(now + timedelta(milliseconds=due_ms)) >= limit
    if len(rates) == 1:
        assert account.paid_micros_by(now + timedelta(milliseconds=due_ms - 1)) < limit


def test_higher_price_applies_from_its_own_time() -> None:
    history = [submitted(), launched(), ready(0, micros=2_000_000), dearer(1800, 5_000_000)]

    account = fold("job-1", history).account

    assert account.micros_per_hour == 5_000_000
    assert account.paid_micros_by(at(3600)) == 3_500_000
    assert trip(fold("job-1", history), Limits(max_hourly_cost_usd=4), at(1801)) is not None
    assert trip(fold("job-1", history[:-1]), Limits(max_hourly_cost_usd=4), at(1801)) is None


def dearer(seconds: float, micros: int) -> PriceChanged:
    return PriceChanged(
        at=at(seconds), attempt=1, micros_per_hour=micros, on_demand_micros_per_hour=micros
    )


def test_meter_of_a_stored_job_continues() -> None:
    history = [submitted(), launched(), ready(0), dearer(5, 7), lost(9), ready(12, attempt=2)]
    account = fold("job-1", history).account

    kept = TypeAdapter(RunningCost)

    assert kept.validate_python(kept.dump_python(account, mode="json")) == account


def test_settled_attempts_of_one_month_add_up() -> None:
    count = RETAINED_METERS + 3
    log: list[Event] = [submitted(), launched()]
    for attempt in range(1, count + 1):
        log += [ready(10 * attempt, attempt=attempt), lost(10 * attempt + 5, attempt=attempt)]

    account = fold("job-1", log).account

    assert account.paid_micros_in(Month.containing(at(0)), at(999)) == 5_000 * count
    assert account.paid_micros == 5_000 * count
