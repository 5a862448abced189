"""Rows that another version cached are ignored: the events alone define a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from holdfast.domain.billing.rate import RateSchedule
from holdfast.domain.billing.running_cost import AttemptMeter, RunningCost
from holdfast.domain.checkpoints.history import SaveHealth
from holdfast.domain.events import CancelRequested, Cause
from holdfast.domain.jobs.job import Job, JobGroup, LauncherChange, PendingDrill
from holdfast.domain.jobs.lifecycle import FOLD
from holdfast.domain.jobs.plan_status import Pace, PlanStatus
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from holdfast.store.tables.jobs import jobs
from sqlalchemy import Engine, event, select, update
from support.events import at, finished, launched, lost, ready, submitted
from support.fakes import FixedClock

OLD = {
    "id": "job-1",
    "seq": 5,
    "name": "tiny-gpt",
    "state": "recovering",
    "submitted_at": "2026-03-01T12:00:00Z",
    "updated_at": "2026-03-01T12:00:05Z",
    "preemptions": 0,
    "failures": 0,
}
"""A row of the first version: fewer fields, no version, and a different definition of preemption."""
FIELDS = (
    "id seq name state owner project engine launcher_changes spec_seq tags sweep trial parameters min_nodes submitted_at updated_at priority queued_at wait_began_at outcome exit_code detail leftovers account stop_asked_at paused_for priority_pauses tripped guard "
    "limits launch_limits launch placement plan pace launches_before_resume is_launched "
    "attempt attempts_before_launch denials placed nodes groups node_changes absent_nodes lost_nodes missing_since preempted_nodes drilled_nodes hosting hosting_attempt "
    "started_attempt noticed left_attempt hopeless furthest_step advanced_attempt "
    "step total_steps last_checkpoint_step saving crashes zone micros_per_hour preemptions drills pending_drills failures failure resumes passed_over"
)


@pytest.fixture
def upgraded(journal: Journal, engine: Engine) -> Job:
    """A job whose row is that of an older version."""
    job = journal.submit("job-1", submitted())
    events = [launched(1), ready(2), lost(5, cause=Cause.NODE_FAILED)]
    job = journal.append(job, events)
    with engine.begin() as connection:
        connection.execute(update(jobs).values(fold=OLD))
    return job


def cached(engine: Engine) -> dict[str, object]:
    with engine.connect() as connection:
        row: dict[str, object] = connection.execute(select(jobs.c.fold)).scalar_one()
    return row


def test_cached_fold_of_another_version_is_recomputed(
    journal: Journal, engine: Engine, upgraded: Job
) -> None:
    assert journal.read("job-1") == upgraded == journal.refold("job-1")
    assert Queries(engine).jobs(limit=5).jobs == (upgraded,)
    assert not journal.is_inconsistent("job-1")
    assert (upgraded.preemptions, upgraded.account.paid_micros) == (1, 3000)


def test_next_event_writes_the_cached_fold_in_current_version(
    journal: Journal, engine: Engine, upgraded: Job
) -> None:
    after = journal.append(upgraded, [ready(9, attempt=2)])

    assert cached(engine)["fold"] == FOLD
    assert journal.read("job-1") == after


def test_all_cached_rows_can_be_rebuilt(journal: Journal, engine: Engine, upgraded: Job) -> None:
    other = journal.append(
        journal.submit("job-2", submitted()), [CancelRequested(at=at(1)), finished(2)]
    )

    assert journal.rebuild_stale() == 1
    assert journal.rebuild_stale() == 0
    assert Queries(engine).jobs(limit=5).jobs == (other, upgraded)
    with engine.connect() as connection:
        versions = {row["fold"] for row in connection.execute(select(jobs.c.fold)).scalars()}
    assert versions == {FOLD}


def test_fold_of_a_newer_version_is_recomputed(
    journal: Journal, engine: Engine, upgraded: Job
) -> None:
    with engine.begin() as connection:
        connection.execute(update(jobs).values(fold={**OLD, "fold": FOLD + 1}))

    assert journal.read("job-1") == upgraded


def test_a_rebuilt_row_does_not_replace_a_newer_one(
    journal: Journal, engine: Engine, upgraded: Job, open_engine: Callable[[str], Engine]
) -> None:
    url = engine.url.render_as_string(hide_password=False)
    other = Journal(open_engine(url), FixedClock())
    newer: list[Job] = []

    def write_meanwhile(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM job_events" in statement and not newer:
            newer.append(other.append(upgraded, [ready(9, attempt=2)]))

    event.listen(engine, "before_cursor_execute", write_meanwhile)
    rebuilt = journal.rebuild("job-1")

    assert rebuilt == upgraded
    assert [journal.read("job-1")] == newer


def test_fold_version_matches_the_cached_fields() -> None:
    """Change this list together with `FOLD`. Otherwise rows cached by an older version are used."""
    assert " ".join(item.name for item in fields(Job)) == FIELDS
    assert [item.name for item in fields(RunningCost)] == [
        *("free_since", "node_ms", "settled_micros", "settled_months", "meters"),
    ]
    assert [item.name for item in fields(AttemptMeter)] == ["attempt", "since", "until", "tariffs"]
    assert [item.name for item in fields(PendingDrill)] == [
        *("at", "node", "leaving_attempt", "leave_at", "nodes"),
    ]
    assert [item.name for item in fields(LauncherChange)] == ["before", "last_launch"]
    assert [item.name for item in fields(JobGroup)] == ["name", "nodes", "micros_per_hour"]
    assert [item.name for item in fields(RateSchedule)] == ["steps"]
    assert [item.name for item in fields(SaveHealth)] == ["guarantee", "interval", "trouble"]
    assert [item.name for item in fields(PlanStatus)] == [
        *(
            "at",
            "capacity",
            "places",
            "reason",
            "since",
            "net_at",
            "changeover_s",
            "late",
            "is_doubtful",
        ),
    ]
    assert [item.name for item in fields(Pace)] == [
        *("steps", "ms", "interval_ms", "restored_step", "attempt", "from_step", "since"),
    ]
    assert FOLD == 18
