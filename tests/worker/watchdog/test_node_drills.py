"""Requests to end nodes reach the starts of nodes that they concern, and no others."""

from __future__ import annotations

from holdfast_worker.watchdog.messages import EndNodes, Message
from holdfast_worker.watchdog.node_drills import NodeDrills


def drills_of(node: int, *, start: int = 0, starts: dict[int, int] | None = None) -> tuple[NodeDrills, list[Message]]:  # fmt: skip
    """The drills of a node, and what it has sent."""
    sent: list[Message] = []
    return NodeDrills(node, start, starts or {}, sent.append), sent


def test_leader_sends_the_newest_start_of_each_node() -> None:
    drills, sent = drills_of(0, starts={1: 0, 2: 5, 3: 7})

    drills.request([2, 3], 90)

    assert sent == [EndNodes({2: 5, 3: 7}, 90)]
    assert drills.end_s is None


def test_leader_may_be_among_the_nodes() -> None:
    drills, sent = drills_of(0, starts={1: 0, 2: 0})

    drills.request([0, 1], 90)

    assert (sent, drills.end_s) == ([EndNodes({1: 0}, 90)], 90)


def test_leader_alone_in_its_group_sends_nothing() -> None:
    drills, sent = drills_of(0, starts={1: 0})

    drills.request([0], 90)
    drills.resend()

    assert (sent, drills.end_s) == ([], 90)


def test_request_is_repeated_for_nodes_that_missed_it() -> None:
    """With the starts of then: a node that came later is not meant."""
    starts = {1: 0}
    drills, sent = drills_of(0, starts=starts)
    drills.request([1], 90)

    starts[1] = 1
    drills.resend()

    assert sent == [EndNodes({1: 0}, 90)] * 2


def test_node_ends_only_at_its_own_start() -> None:
    old, _ = drills_of(2, start=0)
    new, _ = drills_of(2, start=1)
    other, _ = drills_of(1, start=0)

    for drills in (old, new, other):
        drills.handle(0, EndNodes({2: 0}, 90))

    assert [drills.end_s for drills in (old, new, other)] == [90, None, None]


def test_node_obeys_the_leader_alone_and_its_first_request() -> None:
    drills, _ = drills_of(2)

    drills.handle(1, EndNodes({2: 0}, 80))
    drills.handle(0, EndNodes({2: 0}, 90))
    drills.handle(0, EndNodes({2: 0}, 95))

    assert drills.end_s == 90
