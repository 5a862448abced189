"""Leases: every live job has one holder at a time, for a limited time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.store.database import writing
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from sqlalchemy import Engine
from support.events import at, submitted
from support.fakes import FixedClock


@pytest.fixture
def watches(engine: Engine, clock: FixedClock) -> LeaseTable:
    """Three jobs, submitted a second apart."""
    for number in range(3):
        Journal(engine, clock).submit(f"job-{number}", submitted(number))
    return LeaseTable(engine)


def test_a_new_job_is_due_at_once(watches: LeaseTable) -> None:
    assert watches.claim(Kind.LOCAL, at(0), 10, limit=9) == ["job-0"]
    assert watches.claim(Kind.LOCAL, at(2), 10, limit=9) == ["job-1", "job-2"]


def test_claimed_job_is_exclusive_until_its_lease_expires(watches: LeaseTable) -> None:
    watches.claim(Kind.LOCAL, at(5), 10, limit=9)

    assert watches.claim(Kind.LOCAL, at(14), 10, limit=9) == []
    assert watches.claim(Kind.LOCAL, at(15), 10, limit=9) == ["job-0", "job-1", "job-2"]


def test_longest_due_jobs_are_claimed_first(watches: LeaseTable) -> None:
    assert watches.claim(Kind.LOCAL, at(5), 10, limit=2) == ["job-0", "job-1"]
    assert watches.claim(Kind.LOCAL, at(5), 10, limit=2) == ["job-2"]


def test_claim_with_zero_limit_takes_no_write_lock(watches: LeaseTable, engine: Engine) -> None:
    with writing(engine):
        assert watches.claim(Kind.LOCAL, at(5), 10, limit=0) == []


def test_jobs_are_claimed_per_launcher(
    watches: LeaseTable, engine: Engine, clock: FixedClock
) -> None:
    Journal(engine, clock).submit("cloud-1", submitted(infra="aws"))

    assert watches.claim(Kind.SKYPILOT, at(5), 10, limit=9) == ["cloud-1"]
    assert watches.claim(Kind.LOCAL, at(5), 10, limit=9) == ["job-0", "job-1", "job-2"]
    assert [watches.count(kind) for kind in Kind] == [3, 0, 1]


def test_only_engines_with_due_jobs_are_returned(
    watches: LeaseTable, engine: Engine, clock: FixedClock
) -> None:
    at_first = watches.due_engines(at(5))
    Journal(engine, clock).submit("cloud-1", submitted(infra="aws"))
    then = watches.due_engines(at(5))
    without_the_job_under_way = watches.due_engines(at(5), ["cloud-1"])
    for kind in Kind:
        watches.claim(kind, at(5), 10, limit=9)

    assert (at_first, then) == ({Kind.LOCAL}, {Kind.LOCAL, Kind.SKYPILOT})
    assert without_the_job_under_way == {Kind.LOCAL}
    assert (watches.due_engines(at(14)), watches.due_engines(at(15))) == (set(), then)


def test_released_job_is_due_at_its_given_time(watches: LeaseTable) -> None:
    watches.claim(Kind.LOCAL, at(5), 100, limit=9)
    watches.release("job-1", leased_until=at(105), due_at=at(7), seen_at=at(6), trouble=None)

    assert watches.claim(Kind.LOCAL, at(6), 10, limit=9) == []
    assert watches.claim(Kind.LOCAL, at(7), 10, limit=9) == ["job-1"]


def test_a_nudged_job_is_due_at_once(watches: LeaseTable) -> None:
    watches.claim(Kind.LOCAL, at(5), 100, limit=9)
    watches.make_due("job-2", at(6))

    assert watches.claim(Kind.LOCAL, at(6), 10, limit=9) == ["job-2"]


def test_nudge_during_a_lease_is_not_lost(watches: LeaseTable) -> None:
    watches.claim(Kind.LOCAL, at(5), 100, limit=9)
    watches.make_due("job-1", at(6))
    watches.release("job-1", leased_until=at(105), due_at=at(60), seen_at=at(5), trouble=None)

    assert watches.claim(Kind.LOCAL, at(7), 10, limit=9) == ["job-1"]


def test_lost_lease_is_not_released_by_its_former_holder(watches: LeaseTable) -> None:
    watches.claim(Kind.LOCAL, at(5), 10, limit=9)
    watches.claim(Kind.LOCAL, at(15), 10, limit=9)
    watches.release("job-1", leased_until=at(15), due_at=at(16), seen_at=at(5), trouble=None)

    assert watches.claim(Kind.LOCAL, at(20), 10, limit=9) == []


def test_slow_observation_does_not_replace_a_newer_one(watches: LeaseTable, engine: Engine) -> None:
    for began in (6, 9, 7):
        watches.release("job-1", leased_until=at(0), due_at=at(60), seen_at=at(began), trouble=None)

    assert Queries(engine).last_observation("job-1").seen_at == at(9)


def test_claim_skips_jobs_still_in_progress(watches: LeaseTable) -> None:
    assert watches.claim(Kind.LOCAL, at(5), 10, limit=9, without={"job-0", "job-2"}) == ["job-1"]


def test_ended_job_is_no_longer_watched(watches: LeaseTable) -> None:
    watches.remove("job-0")
    watches.make_due("job-0", at(1))

    assert watches.claim(Kind.LOCAL, at(99), 10, limit=9) == ["job-1", "job-2"]


def test_next_due_time_is_known_in_advance(watches: LeaseTable) -> None:
    assert watches.next_due() == at(0)

    watches.claim(Kind.LOCAL, at(5), 10, limit=9)
    assert watches.next_due() == at(15)

    for number in range(3):
        watches.remove(f"job-{number}")
    assert watches.next_due() is None


def test_replicas_that_claim_at_once_share_the_work(watches: LeaseTable) -> None:
    barrier = Barrier(4)

    def claim(_: int) -> list[str]:
        barrier.wait()
        return watches.claim(Kind.LOCAL, at(5), 10, limit=9)

    with ThreadPoolExecutor(4) as pool:
        claimed = [job for jobs in pool.map(claim, range(4)) for job in jobs]

    assert sorted(claimed) == ["job-0", "job-1", "job-2"]
