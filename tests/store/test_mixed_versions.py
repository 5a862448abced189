"""Two replicas of different versions on one database: the older keeps unknown events."""

from __future__ import annotations

import pytest
from holdfast.domain.events import UnknownEvent
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.lifecycle import FOLD
from holdfast.errors import IllegalTransition
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from holdfast.store.tables.jobs import jobs
from sqlalchemy import Engine, select
from support.events import at, finished, launched, lost, ready, submitted, training
from support.newer_version import write_event


@pytest.fixture
def trained(journal: Journal, engine: Engine) -> str:
    """A job in training, with an event of a newer replica that this version does not know."""
    journal.append(journal.submit("job-1", submitted()), [launched(1), ready(2), training(3)])
    write_event(engine, "job-1", at(4), "NodeMeasured", "launcher", attempt=1, gbps=92.5)
    return "job-1"


def version_of_row(engine: Engine) -> int:
    with engine.connect() as connection:
        version: int = connection.execute(select(jobs.c.fold)).scalar_one()["fold"]
    return version


def test_unknown_event_is_kept_and_changes_no_state(journal: Journal, trained: str) -> None:
    job = journal.read(trained)

    last = journal.events(trained)[-1]

    assert (job.state, job.seq, job.passed_over) == (State.TRAINING, 5, 1)
    assert (last.kind, last.source) == ("NodeMeasured", "launcher")
    assert last.event == UnknownEvent(
        at=at(4), kind="NodeMeasured", body={"attempt": 1, "gbps": 92.5}
    )


def test_row_folded_with_skipped_events_is_not_used(
    journal: Journal, engine: Engine, trained: str
) -> None:
    before = version_of_row(engine)

    job = journal.append(journal.read(trained), [lost(5)])

    assert (before, version_of_row(engine)) == (FOLD + 1, 0)
    assert journal.read(trained) == job == journal.refold(trained)
    assert Queries(engine).jobs(limit=5).jobs == (job,)
    assert not journal.is_inconsistent(trained)


def test_newer_replica_refolds_a_rebuilt_row_from_the_log(
    journal: Journal, engine: Engine, trained: str
) -> None:
    journal.rebuild(trained)

    # Neither this version nor the next one uses 0.
    assert version_of_row(engine) not in {FOLD, FOLD + 1}


def test_events_after_an_unknown_transition_are_applied(
    journal: Journal, engine: Engine, trained: str
) -> None:
    """The newer version ended the attempt with an event of its own.

    The next one has nodes again.
    """
    write_event(engine, trained, at(6), "NodesReady", attempt=2, zone="b", nodes=1, **_PRICES)

    job = journal.read(trained)
    job = journal.append(job, [finished(9)])

    assert (job.seq, job.passed_over, job.status) == (7, 2, "succeeded")


def test_illegal_transition_is_refused_without_unknown_events(journal: Journal) -> None:
    job = journal.append(journal.submit("job-1", submitted()), [launched(1), ready(2)])

    with pytest.raises(IllegalTransition):
        journal.append(job, [ready(3, attempt=2)])


def test_known_event_with_an_unknown_value_is_skipped(
    journal: Journal, engine: Engine, trained: str
) -> None:
    write_event(engine, trained, at(6), "CapacityLost", attempt=1, cause="rebalanced", detail="")

    job = journal.read(trained)

    assert isinstance(journal.events(trained)[-1].event, UnknownEvent)
    assert (job.passed_over, job.preemptions) == (2, 0)


def test_unknown_keys_of_a_stored_job_file_are_ignored() -> None:
    block = {"checkpoint": {"store": "s3://b/p", "codec": "zstd"}, "carbon": {"max_kg": 5}}

    spec = JobSpec.from_stored({"name": "x", "run": "true", "shape": "ring", "holdfast": block})

    assert spec.holdfast.checkpoint
    assert spec.holdfast.checkpoint.store == "s3://b/p"


_PRICES = {"micros_per_hour": 1, "on_demand_micros_per_hour": 2, "simulated": False}
