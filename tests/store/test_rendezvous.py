"""Nodes of several groups meet the newest leader of their launch."""

from __future__ import annotations

import pytest
from holdfast.domain.jobs.job import State
from holdfast.errors import Fenced, NotFound
from holdfast.store.journal import Journal
from holdfast.store.rendezvous import ArrivingNode, Meeting, Rendezvous
from holdfast.store.tables.launches import rendezvous
from sqlalchemy import Engine, func, select
from support.events import finished, launched, paused, pausing, ready, resumed, submitted
from support.fakes import FixedClock


@pytest.fixture
def meetings(journal: Journal, engine: Engine, clock: FixedClock) -> Rendezvous:
    """A job that has been launched."""
    journal.append(journal.submit("job-1", submitted()), [launched(1), ready(1)])
    return Rendezvous(engine, clock)


def leader(incarnation: str, *addresses: str) -> ArrivingNode:
    return ArrivingNode(
        node=0,
        group="head",
        incarnation=incarnation,
        addresses=[*addresses] or ["10.0.0.1"],
        port=29400,
    )


def other(incarnation: str, node: int = 1) -> ArrivingNode:
    return ArrivingNode(node=node, group="workers", incarnation=incarnation)


def test_node_waits_until_the_leader_has_registered(meetings: Rendezvous) -> None:
    before = meetings.meet("job-1", other("b1"))
    own = meetings.meet("job-1", leader("a1", "10.0.0.1", "host.internal"))
    after = meetings.meet("job-1", other("b1"))

    assert before == Meeting(None, 0)
    assert own == after == Meeting(leader("a1", "10.0.0.1", "host.internal"), 0)


def test_repeated_requests_change_nothing(meetings: Rendezvous, engine: Engine) -> None:
    for _ in range(3):
        meetings.meet("job-1", leader("a1"))
        assert meetings.meet("job-1", other("b1")).start == 0
        meetings.meet("job-1", other("c1", node=2))

    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(rendezvous)).scalar() == 3


def test_start_counts_earlier_incarnations_at_this_leader(meetings: Rendezvous) -> None:
    meetings.meet("job-1", leader("a1"))
    starts = [meetings.meet("job-1", other(name)).start for name in ("b1", "b2", "b1", "b3")]
    of_another_node = meetings.meet("job-1", other("c1", node=2)).start
    meetings.meet("job-1", leader("a2"))

    assert starts == [0, 1, 0, 2]
    assert of_another_node == 0
    assert meetings.meet("job-1", other("b3")) == Meeting(leader("a2"), 0)
    assert meetings.meet("job-1", other("b4")) == Meeting(leader("a2"), 1)


def test_leader_that_was_replaced_does_not_return(meetings: Rendezvous) -> None:
    meetings.meet("job-1", leader("a1"))
    meetings.meet("job-1", leader("a2"))

    assert meetings.meet("job-1", leader("a1")) == Meeting(leader("a2"), 0)
    assert meetings.meet("job-1", other("b1")).leader == leader("a2")


def test_leader_of_an_earlier_launch_is_not_handed_out(
    meetings: Rendezvous, journal: Journal
) -> None:
    meetings.meet("job-1", leader("a1"))
    meetings.meet("job-1", other("b1"))
    journal.append(
        journal.read("job-1"), [pausing(2), paused(2), resumed(3), launched(4, launch=2)]
    )

    assert journal.read("job-1").launch == 2
    assert meetings.meet("job-1", other("b1")) == Meeting(None, 0)
    with pytest.raises(Fenced, match="newer launch"):
        meetings.meet("job-1", leader("a1"))


def test_nodes_of_a_job_that_stops_are_fenced(meetings: Rendezvous, journal: Journal) -> None:
    meetings.meet("job-1", leader("a1"))
    journal.append(journal.read("job-1"), [pausing(2), paused(2)])

    assert journal.read("job-1").state is State.PAUSED
    for node in (other("b1"), leader("a1"), leader("a2")):
        with pytest.raises(Fenced, match="no worker may start"):
            meetings.meet("job-1", node)


def test_nodes_of_an_ended_job_are_fenced(meetings: Rendezvous, journal: Journal) -> None:
    journal.append(journal.read("job-1"), [finished(2)])

    with pytest.raises(Fenced, match="is ended"):
        meetings.meet("job-1", other("b1"))


def test_unknown_job_has_no_rendezvous(meetings: Rendezvous) -> None:
    with pytest.raises(NotFound):
        meetings.meet("job-9", other("b1"))
