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


def other(incarnation: str, node: int = 1, joined: int = 0) -> ArrivingNode:
    return ArrivingNode(node=node, group="workers", incarnation=incarnation, joined=joined)


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


def test_start_counts_how_often_a_node_was_sent_to_this_leader(meetings: Rendezvous) -> None:
    meetings.meet("job-1", leader("a1"))
    arrivals = [other("b1"), other("b1", joined=1), other("b2"), other("b2"), other("b3")]
    starts = [meetings.meet("job-1", arriving).start for arriving in arrivals]
    of_another_node = meetings.meet("job-1", other("c1", node=2)).start
    meetings.meet("job-1", leader("a2"))

    assert starts == [0, 1, 2, 2, 3]
    assert of_another_node == 0
    assert meetings.meet("job-1", other("b3", joined=1)) == Meeting(leader("a2"), 0)
    assert meetings.meet("job-1", other("b4")) == Meeting(leader("a2"), 1)


def test_replaced_node_does_not_return(meetings: Rendezvous) -> None:
    meetings.meet("job-1", other("b1"))
    meetings.meet("job-1", other("b2"))
    meetings.meet("job-1", leader("a1"))
    meetings.meet("job-1", leader("a2"))

    for node in (leader("a1"), other("b1"), other("b1", joined=1)):
        with pytest.raises(Fenced, match="another machine"):
            meetings.meet("job-1", node)
    assert meetings.meet("job-1", other("b2")) == Meeting(leader("a2"), 0)


def test_leader_of_an_earlier_launch_is_not_handed_out(
    meetings: Rendezvous, journal: Journal
) -> None:
    meetings.meet("job-1", leader("a1"))
    meetings.meet("job-1", other("b1"))
    journal.append(
        journal.read("job-1"), [pausing(2), paused(2), resumed(3), launched(4, launch=2)]
    )

    assert journal.read("job-1").launch == 2
    for node in (leader("a1"), other("b1")):
        with pytest.raises(Fenced, match="newer launch"):
            meetings.meet("job-1", node)
    assert meetings.meet("job-1", other("b2")) == Meeting(None, 0)


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
