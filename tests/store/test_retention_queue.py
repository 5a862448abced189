"""The queue of stores that are due for retention, and the results of each run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from holdfast.domain.charges.charges import UNKNOWN_STORE
from holdfast.store.journal import Journal
from holdfast.store.retention_queue import RetentionQueue, RetentionStatus
from holdfast_worker.protocol.policies import RetentionOwner
from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage
from sqlalchemy import Engine
from support.events import DAWN, at, submitted
from support.fakes import FixedClock


@pytest.fixture
def upkeep(engine: Engine) -> RetentionQueue:
    """Three jobs: the service owns the retention of two, a worker that of one."""
    journal = Journal(engine, FixedClock())
    journal.submit("job-1", submitted(5), tidied_by=RetentionOwner.SERVICE)
    journal.submit("job-2", submitted(3), tidied_by=RetentionOwner.SERVICE)
    journal.submit("job-3", submitted(), tidied_by=RetentionOwner.WORKER)
    journal.submit("job-4", submitted())
    return RetentionQueue(engine)


def test_due_jobs_are_claimed_once_and_longest_due_first(upkeep: RetentionQueue) -> None:
    early = upkeep.claim(at(4), 60, limit=9)
    both = upkeep.claim(at(64), 60, limit=1), upkeep.claim(at(64), 60, limit=9)

    assert [turn.job_id for turn in early] == ["job-2"]
    assert [[turn.job_id for turn in turns] for turns in both] == [["job-1"], ["job-2"]]
    assert upkeep.claim(at(100), 60, limit=9) == []


def test_expired_lease_can_be_claimed_again(upkeep: RetentionQueue) -> None:
    upkeep.claim(at(10), 60, limit=9)

    again = upkeep.claim(at(70), 60, limit=9)

    assert {turn.job_id for turn in again} == {"job-1", "job-2"}


def test_completed_retention_clears_errors_and_is_due_as_set(upkeep: RetentionQueue) -> None:
    one, two = upkeep.claim(at(10), 60, limit=9)
    upkeep.mark_failed(one, "AccessDenied", at(10), at(40))
    upkeep.mark_done(two, at(11), at(50))

    result = upkeep.statuses(["job-1", "job-2", "job-3"])

    assert result == {
        one.job_id: RetentionStatus(None, "AccessDenied", at(10)),
        two.job_id: RetentionStatus(at(11), None, None),
    }
    [again] = upkeep.claim(at(40), 60, limit=9)
    upkeep.mark_done(again, at(41), None)
    assert upkeep.statuses([again.job_id]) == {again.job_id: RetentionStatus(at(41), None, None)}
    assert [turn.job_id for turn in upkeep.claim(at(10_000), 60, limit=9)] == [two.job_id]


def test_failed_retention_is_due_at_once_after_a_restart(upkeep: RetentionQueue) -> None:
    one, two = upkeep.claim(at(10), 60, limit=9)
    upkeep.mark_failed(one, "AccessDenied", at(10), at(4000))
    upkeep.mark_done(two, at(11), at(4000))
    upkeep.retry(at(20))

    again = upkeep.claim(at(20), 60, limit=9)
    upkeep.mark_failed(again[0], "AccessDenied", at(10), None)
    upkeep.retry(at(30))

    assert [turn.job_id for turn in again] == [one.job_id]
    assert upkeep.claim(at(30), 60, limit=9) == []


def test_expired_claim_does_not_reschedule_retention(upkeep: RetentionQueue) -> None:
    [_, late] = upkeep.claim(at(10), 60, limit=9)
    upkeep.claim(at(70), 60, limit=9)

    upkeep.mark_done(late, at(75), at(76))

    assert upkeep.claim(at(80), 60, limit=9) == []


def test_requests_add_up_and_stay_with_the_job(upkeep: RetentionQueue) -> None:
    upkeep.add_requests("job-1", StoreUsage(gets=1, lists=2, deletes=3), DAWN.date())
    upkeep.add_requests("job-1", StoreUsage(lists=5), DAWN.date())
    upkeep.add_requests("job-3", StoreUsage(lists=1), DAWN.date())

    assert upkeep.requests("job-1") == StoreUsage(gets=1, lists=7, deletes=3)
    assert upkeep.requests("job-2") == upkeep.requests("job-3") == NO_USAGE


def test_requests_are_counted_by_day(upkeep: RetentionQueue) -> None:
    day = DAWN.date()
    for usage, later in (
        (StoreUsage(lists=2), 0),
        (StoreUsage(gets=1), 1),
        (StoreUsage(lists=3), 1),
    ):
        upkeep.add_requests("job-1", usage, day + timedelta(days=later))
    upkeep.set_place("s3://bucket/runs", "aws/us-east-1")

    known = upkeep.known_store("job-1", "s3://bucket/runs")

    assert known.requests == StoreUsage(gets=1, lists=5)
    assert [(used.day, used.usage) for used in known.dated] == [
        (day, StoreUsage(lists=2)),
        (day + timedelta(days=1), StoreUsage(gets=1, lists=3)),
    ]
    assert known.place == "aws/us-east-1"
    assert upkeep.known_store("job-1", "") == UNKNOWN_STORE
