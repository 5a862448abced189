"""Workers that cannot reach the service: their attempt numbers and their reports.

Connected workers exist beside them.
"""

from __future__ import annotations

import pytest
from holdfast.errors import Fenced, NotFound, NotRegistered
from holdfast.store.incarnations import JobPosition
from holdfast.store.journal import Journal
from sqlalchemy import Engine
from support.events import at, finished, launched, lost, ready, submitted
from support.fakes import FixedClock
from support.incarnations import IncarnationHarness, leaves, place, saves, trains


@pytest.fixture
def harness(journal: Journal, engine: Engine, clock: FixedClock) -> IncarnationHarness:
    """A job that has been launched."""
    journal.append(journal.submit("job-1", submitted()), [launched(1)])
    return IncarnationHarness(engine, journal, clock)


def test_relaying_worker_gets_the_attempt_of_its_nodes(harness: IncarnationHarness) -> None:
    """Three placements, none of which reached the service, which was unavailable all the time."""
    harness.clock.advance(100)
    harness.look(ready(10), lost(20), ready(30, attempt=2), lost(40), ready(50, attempt=3))

    assert [harness.posts(who, when) for who, when in [("aa", 15), ("bb", 39), ("cc", 55)]] == [
        (1, 0),
        (2, 0),
        (3, 0),
    ]
    assert harness.posts("dd", 25) == (1, 0), "its nodes were the last to run"
    assert harness.posts("ee", 5) == (1, 0), "clocks differ, and no report precedes the first nodes"


def test_relaying_worker_is_unnumbered_until_next_observation(
    harness: IncarnationHarness,
) -> None:
    harness.look(ready(1))
    seconds = (harness.clock.now() - at(0)).total_seconds() + 30

    before = harness.posts("aa", seconds)
    harness.clock.advance(60)
    harness.look()

    assert (before, harness.posts("aa", seconds)) == (None, (1, 0))


def test_ended_job_needs_no_observation_to_number_a_relay(harness: IncarnationHarness) -> None:
    harness.look(ready(1), finished(50))
    harness.watches.remove("job-1")

    assert harness.posts("aa", 60) == (1, 0)


def test_relaying_worker_keeps_its_number_at_the_service(
    harness: IncarnationHarness,
) -> None:
    """Otherwise all imported reports would be recorded twice."""
    harness.clock.advance(100)
    harness.look(ready(10))
    posted = harness.posts("aa", 20)
    harness.journal.ingest("job-1", 1, [trains(1), saves(1)], "aa", at(20))

    assert posted == (1, 0)
    assert harness.calls("aa") == JobPosition(1, next=3, before=0)
    assert harness.calls("aa") == JobPosition(1, next=3, before=0), (
        "this also holds after a lost response"
    )
    assert harness.says("aa", 1, trains(1), saves(1), leaves(1, 3)) == 4


def test_relay_only_worker_fences_no_other_worker(harness: IncarnationHarness) -> None:
    harness.look(ready(1))
    harness.calls("aa")
    harness.look()
    harness.calls("aa")
    harness.clock.advance(100)
    harness.look()

    assert harness.posts("bb", 100) == (1, 0)
    assert harness.calls("aa") == place(1, 1)
    assert harness.says("aa", 1, trains(1)) == 2


def test_relay_only_worker_must_muster_before_reporting(harness: IncarnationHarness) -> None:
    harness.clock.advance(100)
    harness.look(ready(10))
    harness.posts("aa", 20)

    with pytest.raises(NotRegistered):
        harness.says("aa", 1, trains(1))


def test_relaying_worker_returning_after_its_successor_is_fenced(
    harness: IncarnationHarness,
) -> None:
    """Of two workers that register for the first time, it is unknown which one is the zombie.

    This one is known.
    """
    harness.clock.advance(100)
    harness.look(ready(10))
    harness.posts("aa", 20)
    harness.calls("bb")
    harness.look(lost(90), ready(95, attempt=2))

    assert harness.calls("bb") == place(2, 1)
    with pytest.raises(Fenced):
        harness.calls("aa")
    assert harness.calls("bb") == place(2, 1)


def test_reports_relayed_before_a_successor_are_accepted_late(
    harness: IncarnationHarness,
) -> None:
    harness.clock.advance(100)
    harness.look(ready(10))
    harness.posts("aa", 20)
    harness.calls("bb")
    came = (harness.clock.now() - at(0)).total_seconds()
    harness.look(lost(90), ready(95, attempt=2))
    harness.calls("bb")

    taken = harness.journal.ingest("job-1", 1, [trains(1)], "aa", at(came - 1)).next
    with pytest.raises(Fenced):
        harness.journal.ingest("job-1", 1, [saves(1)], "aa", at(came + 1))

    assert taken == 2
    assert harness.says("bb", 2, trains(2)) == 2


def test_second_relaying_worker_on_same_nodes_is_numbered_next(
    harness: IncarnationHarness,
) -> None:
    harness.clock.advance(100)
    harness.look(ready(10))
    harness.posts("aa", 20)
    harness.journal.ingest("job-1", 1, [trains(1), saves(1)], "aa", at(20))

    assert harness.posts("bb", 60) == (1, 2)
    with pytest.raises(Fenced):
        harness.journal.ingest("job-1", 1, [leaves(1, 3)], "aa", at(61))
    assert harness.journal.ingest("job-1", 1, [leaves(1, 3)], "bb", at(62)).next == 4


def test_attempt_number_sent_by_a_relaying_worker_is_kept(harness: IncarnationHarness) -> None:
    """The number came from the service; a database restored since may have forgotten it."""
    harness.clock.advance(100)
    harness.look(ready(10), lost(20), ready(30, attempt=2))
    harness.journal.ingest("job-1", 1, [trains(1), saves(1)])

    assert harness.musters.register_posted("job-1", "aa", at(50), (1, 2)) == (1, 2)
    assert harness.musters.register_posted("job-1", "bb", at(50), (2, 5)) == (2, 0), (
        "five reports are lost"
    )


def test_relay_for_an_unknown_job_is_refused(harness: IncarnationHarness) -> None:
    with pytest.raises(NotFound):
        harness.musters.register_posted("job-2", "aa", at(1), None)
