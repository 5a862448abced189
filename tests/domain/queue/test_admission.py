"""The queue: order, fair shares, bounded waits, and sentences about what jobs wait for."""

from __future__ import annotations

from datetime import timedelta

import pytest
from holdfast.domain.events.values import Demand
from holdfast.domain.queue.admission import PATIENCE, evaluate
from holdfast.domain.queue.queue_state import (
    HALF_LIFE,
    DecayedUsage,
    QueueEntry,
    QueueState,
    held_gpu_hours,
)
from holdfast.domain.queue.quotas import SERVICE_NAME, Quota, QuotaScope
from hypothesis import given
from hypothesis import strategies as st
from support.events import DAWN, at
from support.queue_simulation import (
    HOUR,
    QueueSimulation,
    backlog,
    exceeded,
    service_quota,
    submission,
)

WEEK = DAWN + timedelta(days=7)


def entry(
    job_id: str, *, owner: str = "ada", priority: int = 0, since: float = 0, gpus: int = 8,
    project: str = "default", held: float | None = None,
) -> QueueEntry:  # fmt: skip
    return QueueEntry(
        job_id=job_id,
        project=project,
        owner=owner,
        priority=priority,
        queued_at=at(since),
        demand=Demand(nodes=1, gpus=gpus, micros_per_hour=gpus * 1_000_000),
        admitted_at=None if held is None else at(held),
    )


def order(*waiting: QueueEntry, now: float = 3600, **used: float) -> list[str]:
    state = QueueState(at=at(now), quotas=(service_quota(1000),), waiting=waiting, used=used)
    return [place.entry.job_id for place in evaluate(state)]


def test_priority_precedes_share_and_share_precedes_age() -> None:
    assert order(entry("late", priority=1, since=9), entry("early")) == ["late", "early"]
    assert order(entry("a", owner="ada"), entry("b", owner="bob", since=9), ada=50.0) == ["b", "a"]
    assert order(entry("late", since=9), entry("early")) == ["early", "late"]


def test_users_with_the_same_usage_take_turns() -> None:
    waiting = [entry(f"a{n}", owner="ada", since=n) for n in range(3)]
    waiting += [entry(f"b{n}", owner="bob", since=10 + n) for n in range(3)]

    assert order(*waiting) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_running_jobs_count_for_the_share_of_their_owner() -> None:
    state = QueueState(
        at=at(7200),
        quotas=(service_quota(1000),),
        waiting=(entry("a", owner="ada"), entry("b", owner="bob", since=9)),
        holding=(entry("runs", owner="ada", held=0),),
    )

    assert [place.entry.job_id for place in evaluate(state)] == ["b", "a"]


def test_priority_counts_no_more_after_a_long_wait() -> None:
    now = PATIENCE.total_seconds()
    waiting = entry("low"), entry("high", owner="bob", priority=50, since=now - 1)

    assert order(*waiting, now=now - 1) == ["high", "low"]
    assert order(*waiting, now=now) == ["low", "high"]


def test_small_job_passes_a_large_one_until_that_is_urgent() -> None:
    def admitted(now: float) -> set[str]:
        state = QueueState(
            at=at(now),
            quotas=(service_quota(16),),
            waiting=(entry("large", gpus=16), entry("small", owner="bob", gpus=4, since=now - 1)),
            holding=(entry("runs", owner="eve", held=0),),
            used={"bob": 1e6},
        )
        return {place.entry.job_id for place in evaluate(state) if place.is_admitted}

    assert admitted(100) == {"small"}
    assert admitted(PATIENCE.total_seconds()) == set()


def test_job_says_what_it_waits_for_and_behind_whom() -> None:
    quotas = (Quota(scope=QuotaScope.USER, name="ada", gpus=8, jobs=1),)
    waiting = [entry(f"w{n}", since=n) for n in range(2)]
    others = [entry(f"x{n}", since=10 + n, project="other") for n in range(2)]
    state = QueueState(
        at=at(60), quotas=quotas, waiting=(*waiting, *others), holding=(entry("runs", held=0),)
    )

    first, second, third, last = evaluate(state)

    assert first.reason == (
        "waits for 1 job of the quota of user ada, of which 1 job of 1 job are held"
    )
    assert second.reason.endswith("; behind w0")
    assert third.reason.endswith("; behind 2 jobs")
    assert (last.behind, last.before) == (("x0",), 3)
    assert last.reason.endswith("; behind x0 and 2 jobs more")


@pytest.mark.parametrize(
    ("quota", "command"),
    [
        (
            Quota(scope=QuotaScope.SERVICE, name=SERVICE_NAME, jobs=3, nodes=2),
            "holdfast quota set service --jobs 3 --nodes 4",
        ),
        (
            Quota(scope=QuotaScope.PROJECT, name="nlp", gpus=64, micros_per_hour=20_000_000, may_pause_for_priority=True),
            "holdfast quota set project nlp --gpus 64 --hourly-cost 31.71 --pause-for-priority",
        ),
    ],
)  # fmt: skip
def test_command_that_makes_room_keeps_the_other_limits(quota: Quota, command: str) -> None:
    """`quota set` replaces the whole quota."""
    refusal = quota.never_fits(Demand(nodes=4, gpus=32, micros_per_hour=31_700_001))

    assert refusal.endswith(f"raise it with: {command}")


def test_job_above_a_lowered_quota_waits_and_holds_nobody_up() -> None:
    quotas = (Quota(scope=QuotaScope.USER, name="ada", gpus=8),)
    waiting = entry("large", gpus=16), entry("small", since=1)
    state = QueueState(at=DAWN + 2 * PATIENCE, quotas=quotas, waiting=waiting)

    large, small = evaluate(state)

    assert small.is_admitted
    assert large.never_fits
    assert large.reason == (
        "it needs 16 GPUs, and the quota of user ada allows 8 GPUs at once; ask for less, or raise it with: "
        "holdfast quota set user ada --gpus 16"
    )


ENTRIES = st.builds(
    entry,
    st.uuids().map(str),
    owner=st.sampled_from(["ada", "bob", "eve"]),
    project=st.sampled_from(["x", "y"]),
    priority=st.integers(-2, 2),
    since=st.integers(0, 200_000),
    gpus=st.integers(0, 16),
)
LIMITS = st.none() | st.integers(0, 40)
QUOTAS = st.lists(
    st.builds(
        Quota,
        scope=st.sampled_from([QuotaScope.USER, QuotaScope.PROJECT, QuotaScope.SERVICE]),
        name=st.just("all"),
        jobs=LIMITS,
        nodes=LIMITS,
        gpus=LIMITS,
        micros_per_hour=st.none() | st.integers(0, 30_000_000),
    ).map(lambda q: Quota(scope=q.scope, name={"user": "ada", "project": "x"}.get(q.scope, "all"),
                          jobs=q.jobs, nodes=q.nodes, gpus=q.gpus, micros_per_hour=q.micros_per_hour)),
    unique_by=lambda quota: quota.key,
).map(tuple)  # fmt: skip


@given(waiting=st.lists(ENTRIES, max_size=12, unique_by=lambda e: e.job_id), quotas=QUOTAS)
def test_admissions_exceed_no_quota_and_others_have_a_reason(
    waiting: list[QueueEntry], quotas: tuple[Quota, ...]
) -> None:
    places = evaluate(QueueState(at=at(200_000), quotas=quotas, waiting=tuple(waiting)))

    assert sorted(place.entry.job_id for place in places) == sorted(e.job_id for e in waiting)
    assert [place.position for place in places] == list(range(1, len(waiting) + 1))
    assert all(place.is_admitted != bool(place.reason) for place in places)
    for quota in quotas:
        mine = [p.entry for p in places if p.is_admitted and quota.applies_to(p.entry.project, p.entry.owner)]  # fmt: skip
        exceeded(quota, (each.demand for each in mine))


@given(hours=st.floats(0, 500), gap=st.floats(0, 500))
def test_usage_of_a_share_is_the_same_in_one_part_or_two(hours: float, gap: float) -> None:
    demand = Demand(nodes=1, gpus=8)
    middle, end = DAWN + hours * HOUR, DAWN + (hours + gap) * HOUR

    first = DecayedUsage(gpu_hours=held_gpu_hours(demand, DAWN, middle), at=middle)
    parts = first.decayed(end) + held_gpu_hours(demand, middle, end)

    assert parts == pytest.approx(held_gpu_hours(demand, DAWN, end), abs=1e-6)


def test_usage_halves_after_its_half_life() -> None:
    usage = DecayedUsage(gpu_hours=100, at=DAWN)

    assert usage.decayed(DAWN + HALF_LIFE) == pytest.approx(50)
    assert usage.decayed(DAWN - HALF_LIFE) == 100


def shares(simulation: QueueSimulation) -> list[float]:
    """Accelerator hours of each user, as multiples of their mean."""
    mean = sum(simulation.hours.values()) / len(simulation.hours)
    return sorted(hours / mean for hours in simulation.hours.values())


def test_users_with_a_backlog_get_equal_shares_of_a_week() -> None:
    quotas = (service_quota(80),)
    simulation = QueueSimulation(quotas, backlog(1, users=5, jobs=400, largest=16))

    simulation.run(WEEK)

    assert simulation.waiting
    assert 0.9 <= shares(simulation)[0] <= shares(simulation)[-1] <= 1.1


def test_low_priority_and_large_jobs_start_within_the_bound() -> None:
    longest, jobs = timedelta(hours=8), []
    for number in range(200):  # A stream that alone fills 90 % of the quota.
        since = DAWN + number * timedelta(minutes=42)
        jobs.append(submission(number, f"user-{number % 4}", since, gpus=5, hours=8, priority=9))
    jobs.append(submission(900, "user-8", DAWN + 24 * HOUR, gpus=64, hours=1, priority=-9))
    jobs.append(submission(901, "user-9", DAWN + 24 * HOUR, gpus=8, hours=8, priority=-100))
    jobs.sort(key=lambda each: each.entry.queued_at)
    simulation = QueueSimulation((service_quota(64),), jobs)

    simulation.run(WEEK)

    assert not simulation.waiting
    assert max(simulation.waits.values()) <= PATIENCE + 2 * longest


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_shares_of_twenty_users_differ_little_after_a_week(seed: int) -> None:
    users = tuple(
        Quota(scope=QuotaScope.USER, name=f"user-{n}", jobs=30, gpus=128) for n in range(20)
    )
    simulation = QueueSimulation((service_quota(256), *users), backlog(seed, users=20, jobs=2000))

    simulation.run(WEEK)

    assert simulation.waiting
    assert 0.9 <= shares(simulation)[0] <= shares(simulation)[-1] <= 1.1
