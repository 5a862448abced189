"""The bill against a slow reference that walks through a job history by the millisecond.

The fixture `lives` draws the histories.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from holdfast.domain.billing.bill import Bill, LatestPoint, Phases, compute_bill
from holdfast.domain.events import NodesReady, Outcome, Source, WorkerLeft
from hypothesis import given
from hypothesis import strategies as st
from support.billing_oracle import MS_PER_HOUR, Doing, Life, Plan, end, walked
from support.events import at, lost


@st.composite
def lives(draw: st.DrawFn) -> Life:
    life, short = Life(), st.integers(0, 9)
    course: dict[str, st.SearchStrategy[Any]] = {
        "wait": short,
        "setup": st.integers(1, 9),
        "restore": st.integers(-1, 9),
        "laps": st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), max_size=3),
        "sprint": short,
        "pause": st.sampled_from([0, 0, 1, 3]),
        "idle": st.integers(-2, 4),
        "damaged": st.sampled_from([0, 0, 0, 1, 2]),
        "micros": st.sampled_from([MS_PER_HOUR, 1, 7_777_777, 123_456_789]),
    }
    again = st.lists(st.builds(Plan, **course), max_size=2).map(tuple)
    restarts = st.one_of(st.just(()), again)
    plans = draw(st.lists(st.builds(Plan, restarts=restarts, **course), min_size=1, max_size=5))
    for attempt, plan in enumerate(plans, 1):
        life.live(attempt, plan)
        if attempt < len(plans):
            life.log.append(lost(life.now_s, attempt=attempt))
    end(life, len(plans), draw(st.sampled_from([None, "recovers", *Outcome])))
    return life


def account(life: Life) -> Bill:
    return compute_bill(life.log, {}, at(life.now_s))


@given(lives())
def test_milliseconds_match_a_walk_through_the_history(life: Life) -> None:
    bills = {item.attempt: item for item in account(life).attempts}

    if life.speaks:
        assert {n: item.ms for n, item in bills.items()} == {n: walked(life, n) for n in bills}
    else:
        assert all(item.ms.unmeasured + item.ms.lost == item.ms.total for item in bills.values())
    assert account(life).waiting_ms == sum(m.doing is Doing.WAITING for m in life.moments)


@given(lives())
def test_time_and_money_add_up_exactly_and_nothing_is_negative(life: Life) -> None:
    whole = account(life)

    provisioned = Counter(m.attempt for m in life.moments if m.doing is not Doing.WAITING)
    rates = {e.attempt: e.micros_per_hour for e in life.log if isinstance(e, NodesReady)}
    for item in whole.attempts:
        assert item.ms.total == provisioned[item.attempt]
        assert sum(item.starts_ms, Phases()) == item.ms
        assert item.micros.total == provisioned[item.attempt] * rates[item.attempt] // MS_PER_HOUR
        for phases in (item.ms, item.micros, item.on_demand_micros):
            assert min(getattr(phases, name) for name in Phases.__slots__) >= 0
    assert whole.ms.total == sum(provisioned.values())
    assert whole.paid_micros == sum(item.micros.total for item in whole.attempts)
    known = whole.wasted_micros + whole.micros.useful
    assert whole.paid_micros == known + whole.micros.unmeasured
    assert whole.waiting_ms + whole.ms.total == len(life.moments)


@given(lives())
def test_lost_steps_equal_repeated_steps_if_fully_reported(life: Life) -> None:
    told_all = {e.attempt for e in life.log if isinstance(e, WorkerLeft)}

    for item in account(life).attempts:
        redone = [
            m
            for m in life.moments
            if (m.attempt, m.doing) == (item.attempt, Doing.STEP)
            and m.step >= life.kept(m.attempt, m.start)
        ]
        assert item.lost_steps <= len(redone)
        assert item.lost_steps == len(redone) or item.attempt not in told_all


@given(lives(), st.data())
def test_wrong_worker_clocks_change_no_total(life: Life, data: st.DataObject) -> None:
    """Worker clocks may be wrong by days; provisioned time stays as reported by the launcher."""
    skew_s = st.integers(-100_000, 100_000)
    mad = [
        replace(e, at=at(data.draw(skew_s))) if e.source is Source.WORKER else e for e in life.log
    ]

    whole = compute_bill(mad, {1: LatestPoint(step=5, at=at(0))}, at(life.now_s))

    assert whole.ms.total == account(life).ms.total
    assert whole.paid_micros == account(life).paid_micros
    for item in whole.attempts:
        assert min(getattr(item.ms, name) for name in Phases.__slots__) >= 0
