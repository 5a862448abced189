"""Requests to end nodes reach the starts of nodes that they concern, and no others."""

from __future__ import annotations

from pathlib import Path

from holdfast_worker.watchdog.messages import EndNodes
from holdfast_worker.watchdog.node_drills import NodeDrills
from worker.support.run_driver import free_port
from worker.support.watchdogs import Node, poll_until, together


def test_leader_sends_the_newest_start_of_each_node() -> None:
    drills = NodeDrills(0, 0, {1: 0, 2: 5, 3: 7})

    drills.request([2, 3], 90)

    assert [*drills.messages()] == [EndNodes({2: 5, 3: 7}, 90)]
    assert drills.end_s is None


def test_leader_may_be_among_the_nodes() -> None:
    drills = NodeDrills(0, 0, {1: 0, 2: 0})

    drills.request([0, 1], 90)

    assert ([*drills.messages()], drills.end_s) == ([EndNodes({1: 0}, 90)], 90)


def test_leader_alone_in_its_group_sends_nothing() -> None:
    drills = NodeDrills(0, 0, {1: 0})

    drills.request([0], 90)

    assert ([*drills.messages()], drills.end_s) == ([], 90)


def test_request_is_repeated_for_nodes_that_missed_it() -> None:
    """With the starts of then: a node that came later is not meant."""
    starts = {1: 0}
    drills = NodeDrills(0, 0, starts)
    drills.request([1], 90)
    first = [*drills.messages()]

    starts[1] = 1

    assert first == [*drills.messages()] == [EndNodes({1: 0}, 90)]


def test_request_waits_for_a_node_that_has_not_connected() -> None:
    starts = {1: 0}
    drills = NodeDrills(0, 0, starts)
    drills.request([1, 2], 90)
    first = [*drills.messages()]

    starts |= {1: 1, 2: 3}

    assert first == [EndNodes({1: 0}, 90)]
    assert [*drills.messages()] == [EndNodes({1: 0, 2: 3}, 90)]


def test_node_ends_only_at_its_own_start() -> None:
    old, new, other = NodeDrills(2, 0, {}), NodeDrills(2, 1, {}), NodeDrills(1, 0, {})

    for drills in (old, new, other):
        drills.handle(0, EndNodes({2: 0}, 90))

    assert [drills.end_s for drills in (old, new, other)] == [90, None, None]


def test_node_obeys_the_leader_alone_and_its_first_request() -> None:
    drills = NodeDrills(2, 0, {})

    drills.handle(1, EndNodes({2: 0}, 80))
    drills.handle(0, EndNodes({2: 0}, 90))
    drills.handle(0, EndNodes({2: 0}, 95))

    assert drills.end_s == 90


def test_request_outlives_the_watchdog_that_could_not_send_it(tmp_path: Path) -> None:
    """Ranks start again because of a failure, and the other node has not connected yet."""
    own, others = NodeDrills(0, 0, {1: 0}), NodeDrills(1, 0, {})
    first = Node(tmp_path, 0, 2, free_port(), drills=own)
    with first.watchdog.opened():
        own.request([1], 90)
        first.watchdog.send_drills()

    port = free_port()
    again, other = Node(tmp_path, 0, 2, port, drills=own), Node(tmp_path, 1, 2, port, drills=others)
    with together(again, other):
        poll_until(lambda: others.end_s is not None, again, other)

    assert own.end_s is None
