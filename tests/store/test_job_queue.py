"""The queue in the database: admissions within quotas, also with two services at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from holdfast.domain.access.audit import Actor
from holdfast.domain.events import (
    Admitted,
    Event,
    LaunchRequested,
    PauseRequested,
    PriorityChanged,
)
from holdfast.domain.events.values import Demand
from holdfast.domain.jobs.job import Job
from holdfast.domain.queue.admission import evaluate
from holdfast.domain.queue.queue_state import usage_by_owner
from holdfast.domain.queue.quotas import Quota, QuotaScope
from holdfast.errors import NotFound, StaleWrite
from holdfast.store.journal import Journal
from sqlalchemy import Engine
from support.events import at, finished, launched, paused, resumed, submitted
from support.fakes import FixedClock
from support.sql_log import statements

ADMIN = Actor(name="admin")
EIGHT = Demand(nodes=1, gpus=8, micros_per_hour=5_000_000)


def set_quota(journal: Journal, scope: QuotaScope = QuotaScope.SERVICE, name: str = "all", **limits: int) -> None:  # fmt: skip
    quota = Quota(scope=scope, name=name, **limits)
    journal.queue.set_quota(quota, ADMIN.audit_action("quota.set", name))


def submit(journal: Journal, job_id: str, owner: str = "ada", seconds: float = 0) -> Job:
    event = replace(submitted(seconds), by=owner, demand=EIGHT)
    return journal.submit(job_id, event)


def admit(journal: Journal, job: Job, demand: Demand = EIGHT) -> Job:
    events: Sequence[Event] = (
        Admitted(at=at(1), demand=demand),
        LaunchRequested(at=at(1), launch=job.launch + 1),
    )
    return journal.append(job, events)


def test_job_without_room_is_not_admitted_by_anyone(journal: Journal) -> None:
    set_quota(journal, gpus=8)
    first, second = submit(journal, "job-1"), submit(journal, "job-2")
    first = admit(journal, first)

    with pytest.raises(StaleWrite, match="the quota of the service has no room for more gpus"):
        admit(journal, second)
    with pytest.raises(StaleWrite, match="the quotas were changed"):
        journal.append(second, [launched(2)])
    journal.append(first, [finished(3)])

    assert admit(journal, second).state == "provisioning"


@pytest.mark.parametrize(
    "quota",
    [
        Quota(scope=QuotaScope.USER, name="ada", jobs=1),
        Quota(scope=QuotaScope.PROJECT, name="default", nodes=1),
        Quota(scope=QuotaScope.SERVICE, name="all", micros_per_hour=9_999_999),
    ],
    ids=lambda quota: quota.scope.value,
)
def test_each_scope_and_kind_is_enforced(journal: Journal, quota: Quota) -> None:
    journal.queue.set_quota(quota, ADMIN.audit_action("quota.set", quota.name))
    admit(journal, submit(journal, "job-1"))

    with pytest.raises(StaleWrite, match="has no room"):
        admit(journal, submit(journal, "job-2"))

    if quota.scope is QuotaScope.USER:
        admit(journal, submit(journal, "job-3", owner="bob"))


def test_share_is_released_by_a_pause_and_taken_again_later(
    journal: Journal, clock: FixedClock
) -> None:
    set_quota(journal, gpus=8)
    job = admit(journal, submit(journal, "job-1"))
    clock.advance(3600)
    paused_job = journal.append(job, [PauseRequested(at=at(3600)), paused(3600)])
    released = journal.queue.state()
    journal.append(paused_job, [resumed(3700)])
    [again] = evaluate(journal.queue.state())

    assert (released.waiting, released.holding) == ((), ())
    assert usage_by_owner(released)["ada"] == pytest.approx(8, rel=0.01)
    assert again.is_admitted
    assert again.entry.queued_at == at(3700)


def test_running_jobs_hold_shares_from_the_first_quota_on(journal: Journal) -> None:
    journal.append(journal.submit("job-1", submitted()), [launched(1)])
    old = journal.submit("job-2", submitted())
    set_quota(journal, jobs=1)
    state = journal.queue.state()

    assert [entry.job_id for entry in state.holding] == ["job-1"]
    assert [entry.job_id for entry in state.waiting] == ["job-2"]
    with pytest.raises(StaleWrite):
        admit(journal, old)


def test_priority_reaches_the_queue(journal: Journal) -> None:
    set_quota(journal, gpus=0)
    submit(journal, "job-1")
    second = submit(journal, "job-2", seconds=1)
    journal.append(second, [PriorityChanged(at=at(2), priority=5)])

    assert [p.entry.job_id for p in evaluate(journal.queue.state())] == ["job-2", "job-1"]


def test_removed_quota_ends_the_queue(journal: Journal) -> None:
    set_quota(journal, jobs=0)
    job = submit(journal, "job-1")
    journal.queue.remove(QuotaScope.SERVICE, "all", ADMIN.audit_action("quota.remove", "all"))

    assert journal.append(job, [launched(1)]).state == "provisioning"
    with pytest.raises(NotFound, match="there is no quota of the service"):
        journal.queue.remove(QuotaScope.SERVICE, "all", ADMIN.audit_action("quota.remove", "all"))


def test_two_services_admit_no_two_jobs_into_the_same_room(
    engine: Engine, database_url: str, open_engine: Callable[[str], Engine], clock: FixedClock
) -> None:
    journals = [Journal(engine, clock), Journal(open_engine(database_url), clock)]
    set_quota(journals[0], gpus=24)
    jobs = [submit(journals[0], f"job-{number}", owner=f"user-{number}") for number in range(12)]

    def race(number: int) -> None:
        with suppress(StaleWrite):
            admit(journals[number % 2], jobs[number])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(race, range(12)))

    assert len(journals[0].queue.state().holding) == 3


def test_without_quotas_a_launch_needs_one_more_query(journal: Journal, engine: Engine) -> None:
    job = journal.submit("job-1", submitted())

    with statements(engine) as sent:
        journal.append(job, [launched(1)])

    assert sum("quotas" in text for text in sent) <= 1
    assert not any("queue_entries" in text for text in sent)


def test_state_without_quotas_is_empty(journal: Journal) -> None:
    journal.submit("job-1", submitted())

    state = journal.queue.state()

    assert (state.quotas, state.waiting, state.holding) == ((), (), ())


def test_jobs_of_an_older_version_are_enrolled(journal: Journal, engine: Engine) -> None:
    set_quota(journal, jobs=1)
    submit(journal, "job-1")
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM queue_entries")
    journal.queue.enroll()

    assert [entry.job_id for entry in journal.queue.state().waiting] == ["job-1"]
