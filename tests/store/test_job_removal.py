"""Removal of jobs: remaining rows, deleted rows, and the state after a crash in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from holdfast.background.job_retention import FAILURE_DEADLINE, JobEraser, JobRetention
from holdfast.controller.orphan_cleanup import OrphanCleaner
from holdfast.domain.access.audit import Actor, AuditAction
from holdfast.domain.budgets import BudgetScope, Month
from holdfast.domain.events import CheckpointsRemoved, CleanupFailed, Event, Removal
from holdfast.domain.jobs.job import Job
from holdfast.errors import (
    BadJobFile,
    CheckpointStoreUnreachable,
    NotFound,
    NotPossibleNow,
    StaleWrite,
)
from holdfast.store.audit_log import AuditLog
from holdfast.store.billing.bills import BillRollups
from holdfast.store.billing.cost_request import CostRequest, GroupBy
from holdfast.store.billing.costs import CostQueries
from holdfast.store.billing.preemption_costs import PreemptionCostQueries
from holdfast.store.billing.preemptions import LossBy, LossRequest
from holdfast.store.budgets import spent
from holdfast.store.database import reading
from holdfast.store.job_removal import Removals
from holdfast.store.journal import Journal, SubmissionRequest
from holdfast.store.queries import Queries
from holdfast.store.tables.base import metadata
from holdfast_worker.protocol.policies import RetentionOwner
from holdfast_worker.protocol.reports import Report, ReportKind
from sqlalchemy import Connection, Engine, event, select
from support.events import at, finished, launched, lost, ready, saved, submitted, training
from support.fakes import FixedClock
from support.memory_store import MemoryBucket, MemoryObjects, StoreFaults

ADA = Actor(name="ada")
HOUR_S = 3600
NOW = at(40 * HOUR_S)
STORE = "s3://bucket/prefix"
KEPT_TABLES = {"ledgers", "ledger_shares", "ledger_hours", "ledger_placements", "launches", "launch_starts", "place_observations", "submissions", "removed_jobs", "audit"}  # fmt: skip
"""Tables that may name a removed job."""


def removal_action(job: Job) -> AuditAction:
    return ADA.audit_action("job.remove", job.id)


def job_events(draw: random.Random) -> list[Event]:
    """A job that ended after some placements, possibly after the end of its month."""
    events: list[Event] = [launched(1)]
    seconds = draw.randrange(9 * HOUR_S)
    for attempt in range(1, draw.randint(2, 4)):
        micros = draw.choice([1, 7_777_777, 33_333_333])
        events.append(ready(seconds, attempt=attempt, zone=draw.choice("ab"), micros=micros))
        events.append(training(seconds + 60, attempt=attempt, step=0))
        events.append(saved(seconds + 600, attempt=attempt, step=10, stall_ms=100))
        seconds += draw.randint(700, 5 * HOUR_S)
        events.append(lost(seconds, attempt=attempt))
    return [*events, finished(seconds)]


@dataclass
class LaunchFiles:
    """A launcher with files of launches; it keeps those of a running launch."""

    kept_keys: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)

    def keys_with_files(self) -> Sequence[str]:
        return sorted(self.kept_keys)

    def discard(self, key: str) -> None:
        if key not in self.running:
            self.kept_keys.remove(key)


@dataclass
class Harness:
    """A database with jobs, one store of checkpoints, and one launcher."""

    engine: Engine
    clock: FixedClock

    def __post_init__(self) -> None:
        self.journal = Journal(self.engine, self.clock)
        self.removals = Removals(self.engine, self.clock)
        self.ledgers = BillRollups(self.engine)
        self.bucket_objects, self.faults, self.files = (
            MemoryObjects(self.clock),
            StoreFaults(),
            LaunchFiles(),
        )
        self.eraser = JobEraser(
            removals=self.removals,
            journal=self.journal,
            launchers=(self.files,),
            open_bucket=lambda store, job_id, envs: MemoryBucket(self.bucket_objects, self.faults),
            clock=self.clock,
        )

    def ended(self, job_id: str, events: Sequence[Event] = (), **fields: Any) -> Job:
        """A job that has ended, with points and files."""
        first = replace(submitted(checkpoint={"store": STORE, "every": "15m"}), **fields)
        job = self.journal.submit(
            job_id,
            first,
            SubmissionRequest(f"key-{job_id}", "0" * 64),
            tidied_by=RetentionOwner.SERVICE,
        )
        history = [*events] or [launched(1), ready(2), training(3), finished(HOUR_S)]
        self.journal.append(job, history[:-1])
        for n in range(1, 4):
            values = {"step": n, "values": {"loss": 1.0}}
            report = Report(n=n, kind=ReportKind.PROGRESS, attempt=1, at=at(9 + n), body=values)
            self.journal.ingest(job_id, 1, [report])
        self.files.kept_keys.append(f"{job_id}-1")
        job = self.journal.read(job_id)
        return self.journal.append(job, history[-1:])

    def remove(self, job_id: str, **options: Any) -> None:
        self.removals.remove(job_id, removal_action, self.ledgers, **options)

    def costs(self) -> object:
        """The cost of each job."""
        return CostQueries(self.engine, BillRollups(self.engine)).totals(
            CostRequest(by=GroupBy.JOB), NOW
        )

    def sums(self) -> list[object]:
        """All totals over jobs."""
        costs = CostQueries(self.engine, self.ledgers)
        preemption_costs = PreemptionCostQueries(self.ledgers)
        with reading(self.engine) as connection:
            months = [Month.containing(at(day * 24 * HOUR_S)) for day in (0, 31)]
            budgets = [
                spent(connection, scope, name, month, NOW)
                for scope, name in ((BudgetScope.PROJECT, "p0"), (BudgetScope.USER, "user-1"))
                for month in months
            ]
        return [
            budgets,
            *(costs.totals(CostRequest(by=by, tag="team"), NOW) for by in GroupBy),
            preemption_costs.notices(LossRequest(by=LossBy.ZONE), NOW),
            preemption_costs.most_expensive(LossRequest(by=LossBy.ZONE), NOW, 10),
            preemption_costs.history(LossRequest(by=LossBy.ZONE), NOW, 10),
        ]

    def mentions(self, job_id: str) -> set[str]:
        """The tables with a row of the job."""
        found = set()
        with self.engine.connect() as connection:
            for table in metadata.sorted_tables:
                names = [name for name in ("job_id", "id", "target") if name in table.columns]
                for name in names:
                    query = select(table.c[name]).where(table.c[name] == job_id).limit(1)
                    if connection.execute(query).first():
                        found.add(table.name)
        return found


@pytest.fixture
def harness(engine: Engine, clock: FixedClock) -> Harness:
    return Harness(engine, clock)


def test_totals_are_exact_after_removal(harness: Harness) -> None:
    draw = random.Random(11)
    names = [f"job-{number}" for number in range(8)]
    for number, name in enumerate(names):
        harness.ended(name, job_events(draw), by=f"user-{number % 3}", project=f"p{number % 2}")
    harness.clock.advance((NOW - harness.clock.now()).total_seconds())
    before = harness.sums()

    for name in names:
        harness.remove(name)
    harness.eraser.erase_all()

    assert harness.sums() == before
    assert Harness(harness.engine, harness.clock).sums() == before
    # The newest event waits for a newer one.
    assert [removal.job_id for removal in harness.removals.list_unfinished()] == names[-1:]


def test_no_row_or_file_of_a_removed_job_stays(harness: Harness) -> None:
    harness.ended("job-1")
    harness.ended("job-2")
    harness.bucket_objects.put("commits/1")
    harness.bucket_objects.put("inbox/attempt-1/1")

    harness.remove("job-1")
    harness.eraser.erase_all()

    [done] = [harness.removals.find("job-1")]
    assert done
    assert done.done_at == harness.clock.now()
    assert harness.mentions("job-1") <= KEPT_TABLES
    assert harness.mentions("job-2") > {"jobs", "job_events", "metric_points", "upkeep", "watches"}
    assert harness.files.kept_keys == ["job-2-1"]
    assert harness.bucket_objects.keys() == ["commits/1"]
    with pytest.raises(NotFound):
        harness.journal.read("job-1")


def test_checkpoints_are_deleted_on_request(harness: Harness) -> None:
    harness.ended("job-1")
    harness.ended("job-2")
    for key in ("commits/1", "step-1-e1-00/rank-0/0", "starts/1", "claims/1", "inbox/a/1"):
        harness.bucket_objects.put(key)

    harness.remove("job-1", with_checkpoints=True)
    harness.eraser.erase_all()

    assert harness.bucket_objects.keys() == []


@contextmanager
def crash_at(engine: Engine, number: int) -> Iterator[list[str]]:
    """Fail the deleting statement of this number."""
    seen: list[str] = []

    def interrupt(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("DELETE", "INSERT INTO removed", "UPDATE removed")):
            seen.append(statement)
            if len(seen) == number:
                raise MemoryError("killed")

    event.listen(engine, "before_cursor_execute", interrupt)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", interrupt)


def test_interrupted_removal_continues(harness: Harness) -> None:
    number, crashes = 1, 0
    is_through = False
    while not is_through:
        name = f"job-{number}"
        harness.ended(name)
        harness.ended(f"next-{number}")
        before = harness.costs()
        is_through = True
        with crash_at(harness.engine, number):
            try:
                harness.remove(name, with_checkpoints=True)
                harness.eraser.erase_all()
            except MemoryError:
                is_through, crashes = False, crashes + 1

        harness.remove(name)
        harness.eraser.erase_all()

        assert harness.mentions(name) <= KEPT_TABLES
        assert harness.costs() == before
        assert not harness.removals.list_unfinished()
        number += 1
    assert crashes > 8


def test_event_numbers_are_never_used_twice(harness: Harness) -> None:
    harness.ended("job-1")
    newest = Queries(harness.engine).newest_cursor()

    harness.remove("job-1")
    harness.eraser.erase_all()
    left = harness.removals.list_unfinished()
    harness.ended("job-2")
    harness.eraser.erase_all()

    assert [removal.job_id for removal in left] == ["job-1"]
    assert Queries(harness.engine).stream(after=0)[0].cursor == newest + 1
    assert not harness.removals.list_unfinished()


def test_live_job_is_not_removed(harness: Harness) -> None:
    job = harness.journal.submit("job-1", submitted())
    harness.journal.append(job, [launched(1), ready(2)])

    with pytest.raises(NotPossibleNow, match="only ended jobs"):
        harness.remove("job-1")


def test_job_with_nodes_that_may_be_billed_is_not_removed(harness: Harness) -> None:
    job = harness.ended("job-1")
    harness.journal.append(job, [CleanupFailed(at=at(HOUR_S + 1), detail="cluster c1 is up")])

    with pytest.raises(NotPossibleNow, match="cluster c1 is up"):
        harness.remove("job-1")


def test_checkpoints_that_a_live_job_resumes_from_stay(harness: Harness) -> None:
    harness.ended("job-1")
    child = submitted(checkpoint={"store": STORE, "every": "15m", "from": "job-1"})
    job = harness.journal.submit("job-2", child)

    with pytest.raises(NotPossibleNow, match="job-2 resumes from its checkpoints"):
        harness.remove("job-1", with_checkpoints=True)
    harness.journal.append(job, [launched(1), ready(2), training(3), saved(9, step=1)])
    harness.remove("job-1", with_checkpoints=True)

    assert harness.removals.find("job-1")


def test_child_job_submitted_during_removal_keeps_checkpoints(
    harness: Harness, database_url: str, open_engine: Callable[[str], Engine]
) -> None:
    harness.ended("job-1")
    other = Journal(open_engine(database_url), harness.clock)

    def submitting(job: Job) -> AuditAction:
        """Called between the checks of the job and the transaction of its removal."""
        other.submit("job-2", submitted(checkpoint={"store": STORE, "from": job.id}))
        return removal_action(job)

    with pytest.raises(NotPossibleNow, match="job-2 resumes from its checkpoints"):
        harness.removals.remove("job-1", submitting, harness.ledgers, with_checkpoints=True)

    assert harness.removals.find("job-1") is None
    assert harness.journal.read("job-1").outcome


@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_parent_removed_before_its_child_is_recorded(
    harness: Harness,
    database_url: str,
    open_engine: Callable[[str], Engine],
    with_checkpoints: bool,
) -> None:
    harness.ended("job-1")
    other = Journal(open_engine(database_url), harness.clock)
    child = submitted(checkpoint={"store": STORE, "from": "job-1"})
    harness.remove("job-1", with_checkpoints=with_checkpoints)

    if with_checkpoints:
        with pytest.raises(BadJobFile, match="checkpoint/from: job job-1 was removed with its checkpoints"):  # fmt: skip
            other.submit("job-2", child)
    else:
        other.submit("job-2", child)

    assert Queries(harness.engine).all_ids() == ([] if with_checkpoints else ["job-2"])


def test_late_event_of_a_removed_job_is_refused(harness: Harness) -> None:
    job = harness.ended("job-1")
    harness.remove("job-1")
    late = CheckpointsRemoved(at=at(9), checkpoints=("c",), removal=Removal.SUPERSEDED, size_bytes=1)  # fmt: skip

    with pytest.raises(StaleWrite, match="was removed"):
        harness.journal.append(job, [late])


def test_launches_of_a_removed_job_stay_known(harness: Harness) -> None:
    harness.ended("job-1")
    sweeper = OrphanCleaner(journal=harness.journal, launchers={}, clock=harness.clock)

    harness.remove("job-1")

    assert sweeper.is_live("job-1-1") is False
    assert sweeper.is_live("job-1-2") is None
    assert sweeper.is_live("job-9-1") is None


def test_repeated_submission_of_a_removed_job_is_refused(harness: Harness) -> None:
    harness.ended("job-1")
    harness.remove("job-1")

    with pytest.raises(NotPossibleNow, match="belongs to job job-1, which was removed"):
        harness.journal.submit("job-2", submitted(), SubmissionRequest("key-job-1", "0" * 64))


def test_removal_is_one_row_of_the_audit_log(harness: Harness) -> None:
    harness.ended("job-1")

    harness.remove("job-1")
    harness.remove("job-1")

    rows = AuditLog(harness.engine, harness.clock).page(limit=9)
    assert [(row.audit_action.action, row.audit_action.target) for row in rows] == [
        ("job.remove", "job-1")
    ]


def test_unreachable_store_is_retried_for_a_week(harness: Harness) -> None:
    harness.ended("job-1")
    harness.ended("job-2")
    harness.faults.error = CheckpointStoreUnreachable("no answer")
    harness.remove("job-1", with_checkpoints=True)

    harness.eraser.erase_all()
    [waits] = harness.removals.list_unfinished()
    harness.clock.advance(FAILURE_DEADLINE.total_seconds())
    harness.eraser.erase_all()

    assert waits.trouble == f"{STORE}/job-1: no answer"
    assert not harness.removals.list_unfinished()


def test_files_of_a_launch_that_may_run_stay(harness: Harness) -> None:
    harness.ended("job-1")
    harness.ended("job-2")
    harness.files.running.append("job-1-1")
    harness.remove("job-1")

    harness.eraser.erase_all()
    [waits] = harness.removals.list_unfinished()
    harness.files.running.clear()
    harness.eraser.erase_all()

    assert waits.trouble == "launch job-1-1 may still run"
    assert harness.files.kept_keys == ["job-2-1"]


def test_old_jobs_are_removed_where_their_time_is_limited(harness: Harness) -> None:
    harness.ended("job-1")
    harness.clock.advance(10 * 86_400)
    harness.ended("job-2")
    harness.journal.submit("job-3", submitted())
    harness.clock.advance(86_400)

    def remove_old(keep: timedelta | None) -> None:
        JobRetention(
            removals=harness.removals,
            bill_rollups=harness.ledgers,
            clock=harness.clock,
            keep_jobs_for=keep,
            audit=AuditLog(harness.engine, harness.clock),
            keep_audit_for=None,
        ).remove_old()

    remove_old(None)
    kept = Queries(harness.engine).all_ids()
    remove_old(timedelta(days=10))

    assert kept == ["job-1", "job-2", "job-3"]
    assert Queries(harness.engine).all_ids() == ["job-2", "job-3"]
