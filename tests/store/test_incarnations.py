"""Workers without attempt numbers.

The newest to register represents the job, and an observation numbers it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from holdfast.domain.events import Cause
from holdfast.domain.jobs.job import State
from holdfast.errors import Fenced, NotFound, NotObservedYet, NotRegistered
from holdfast.store.database import writing
from holdfast.store.incarnations import JobPosition
from holdfast.store.journal import Journal
from holdfast.store.tables.launches import musters
from sqlalchemy import Engine, delete, update
from support.events import at, finished, launched, lost, paused, ready, submitted, tripped
from support.fakes import FixedClock
from support.incarnations import IncarnationHarness, leaves, place, saves, trains


@pytest.fixture
def harness(journal: Journal, engine: Engine, clock: FixedClock) -> IncarnationHarness:
    """A job that has been launched."""
    journal.append(journal.submit("job-1", submitted()), [launched(1)])
    return IncarnationHarness(engine, journal, clock)


def test_worker_waits_for_an_observation(harness: IncarnationHarness) -> None:
    harness.look()

    before = harness.calls("aa")
    harness.look()
    after = harness.calls("aa")

    assert (before, after) == (None, place(1, 1))


def test_observation_before_registration_assigns_no_attempt(harness: IncarnationHarness) -> None:
    """It may have seen the nodes of the previous attempt."""
    harness.calls("aa")
    began = harness.clock.now()
    harness.watches.release("job-1", leased_until=at(0), due_at=at(9), seen_at=began, trouble=None)

    assert harness.calls("aa") is None


def test_registration_makes_the_job_due_immediately(harness: IncarnationHarness) -> None:
    harness.look()
    due_before = harness.watches.next_due()
    harness.calls("aa")

    assert due_before == at(9999)
    assert harness.watches.next_due() == harness.clock.now()


def test_worker_before_its_nodes_is_on_the_next_attempt(
    harness: IncarnationHarness,
) -> None:
    harness.calls("aa")
    harness.look()

    before = harness.calls("aa")
    harness.look(ready(3))

    assert before == harness.calls("aa") == place(1, 1)


def test_worker_gets_the_attempt_of_its_recorded_placement(harness: IncarnationHarness) -> None:
    harness.calls("aa")
    harness.look(ready(1), lost(2), ready(3, attempt=2))

    assert harness.calls("aa") == place(2, 1)


def test_new_incarnation_gets_next_attempt_and_fences_the_old(
    harness: IncarnationHarness,
) -> None:
    harness.calls("aa")
    harness.look(ready(1))
    harness.calls("aa")
    harness.calls("bb")
    harness.look(lost(4))

    assert harness.calls("bb") == place(2, 1)
    with pytest.raises(Fenced):
        harness.calls("aa")
    with pytest.raises(Fenced):
        harness.says("aa", 1, trains(1))


def test_old_worker_is_fenced_once_a_new_one_registers(
    harness: IncarnationHarness,
) -> None:
    """This holds even while the attempt of the new one is unknown.

    Two writers are worse than none.
    """
    harness.calls("aa")
    harness.look(ready(1))
    harness.calls("aa")
    harness.says("aa", 1, trains(1))
    harness.calls("bb")

    with pytest.raises(Fenced):
        harness.says("aa", 1, leaves(1))

    assert harness.journal.marks("job-1") == {1: 1}


def test_restarted_worker_continues_its_attempt(
    harness: IncarnationHarness,
) -> None:
    harness.calls("aa")
    harness.look(ready(1))
    harness.calls("aa")
    harness.says("aa", 1, trains(1), saves(1))
    harness.calls("bb")
    harness.look()

    assert harness.calls("bb") == place(1, 3)
    assert harness.says("bb", 1, leaves(1, 3)) == 4


def test_every_registration_returns_next_report_number(
    harness: IncarnationHarness,
) -> None:
    harness.calls("aa")
    harness.look(ready(1))
    harness.calls("aa")
    harness.says("aa", 1, trains(1))

    assert harness.calls("aa") == JobPosition(1, next=2, before=0)


def test_registration_for_an_ended_job_is_fenced(harness: IncarnationHarness) -> None:
    harness.calls("aa")
    harness.look(ready(1))
    harness.calls("aa")
    harness.look(finished(5))

    for incarnation in ("aa", "bb"):
        with pytest.raises(Fenced, match="has ended"):
            harness.calls(incarnation)
    assert harness.says("aa", 1, trains(1)) == 2, "its last reports are accepted"


def test_worker_of_a_stopping_job_does_not_start(harness: IncarnationHarness) -> None:
    """An unreachable launcher may still start it.

    Such a worker would train beyond the budget, unobserved.
    """
    harness.calls("aa")
    harness.look(ready(1))
    harness.calls("aa")
    harness.look(tripped(3))

    with pytest.raises(Fenced, match="is pausing"):
        harness.calls("bb")

    assert harness.calls("aa") == place(1, 1)
    assert harness.says("aa", 1, trains(1), leaves(1)) == 3


def test_worker_of_a_paused_job_is_fenced(harness: IncarnationHarness) -> None:
    harness.calls("aa")
    harness.look(ready(1))
    harness.look(tripped(3), lost(4, cause=Cause.PAUSED), paused(5))

    for incarnation in ("aa", "bb"):
        with pytest.raises(Fenced, match="is paused; stop"):
            harness.calls(incarnation)


def test_report_from_unregistered_worker_is_rejected(harness: IncarnationHarness) -> None:
    with pytest.raises(NotRegistered):
        harness.says("zz", 1, trains(1))


def test_worker_may_report_for_its_own_attempt_only(harness: IncarnationHarness) -> None:
    harness.calls("aa")

    with pytest.raises(NotRegistered, match="not registered"):
        harness.says("aa", 1, trains(1))
    harness.look(ready(1))
    harness.calls("aa")
    with pytest.raises(NotRegistered, match="attempt 2"):
        harness.says("aa", 2, trains(2))


def test_worker_unknown_to_a_restored_database_is_not_fenced(
    harness: IncarnationHarness, engine: Engine
) -> None:
    """It would be killed at once without a save.

    So would every job that has recovered since the last backup.
    """
    harness.calls("aa")
    harness.look(ready(1))
    harness.calls("aa")
    harness.calls("bb")
    harness.look(lost(4), ready(5, attempt=2))
    harness.calls("bb")
    with writing(engine) as connection:
        connection.execute(delete(musters).where(musters.c.incarnation == "bb"))

    with pytest.raises(NotRegistered):
        harness.says("bb", 2, trains(2))
    assignment = harness.calls("bb")
    harness.look()

    assert (assignment, harness.calls("bb")) == (None, place(2, 1))
    assert harness.says("bb", 2, trains(2)) == 2
    with pytest.raises(Fenced):
        harness.says("aa", 1, trains(1))


def test_worker_with_lost_assignment_registers_again(
    harness: IncarnationHarness, engine: Engine
) -> None:
    harness.calls("aa")
    harness.look(ready(1))
    harness.calls("aa")
    with writing(engine) as connection:
        connection.execute(update(musters).values(attempt=None))

    with pytest.raises(NotRegistered):
        harness.says("aa", 1, trains(1))

    assert harness.calls("aa") == place(1, 1)
    assert harness.says("aa", 1, trains(1)) == 2


def test_numbered_attempts_need_no_registration(
    harness: IncarnationHarness,
) -> None:
    harness.calls("aa")

    assert harness.journal.ingest("job-1", 1, [trains(1)]).next == 2


def test_registration_for_an_unknown_job_is_not_found(harness: IncarnationHarness) -> None:
    with pytest.raises(NotFound):
        harness.musters.register("job-2", "aa")


def test_early_reports_count_once_nodes_are_recorded(
    harness: IncarnationHarness,
) -> None:
    harness.calls("aa")
    harness.look()
    harness.calls("aa")
    harness.says("aa", 1, trains(1), saves(1), leaves(1, 3))
    early = harness.journal.read("job-1")
    harness.look(ready(1))
    placed = harness.journal.read("job-1")

    assert (early.state, early.last_checkpoint_step) == (State.PROVISIONING, 4)
    assert (placed.state, placed.attempt, placed.step) == (State.TRAINING, 1, 5)
    assert (placed.noticed, placed.left_attempt) == ((1,), 1)
    harness.calls("bb")
    harness.look(lost(9, cause=Cause.PREEMPTED))
    assert harness.calls("bb") == place(2, 1)


def test_concurrent_registrations_are_serialized(harness: IncarnationHarness) -> None:
    barrier = Barrier(6)

    def call(number: int) -> None:
        barrier.wait()
        with pytest.raises(NotObservedYet):
            harness.musters.register("job-1", f"worker-{number}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(call, range(6)))
    harness.look()
    answers = 0
    for number in range(6):
        try:
            answers += harness.calls(f"worker-{number}") == place(1, 1)
        except Fenced:
            continue

    assert answers == 1
