"""Hosts are chosen for the ranks of missing nodes, and give them up to replacements."""

from __future__ import annotations

import pytest
from holdfast_worker.watchdog.hosting import (
    HOST_TIMEOUT_S,
    MAX_FAILURES,
    MOVE_TIMEOUT_S,
    Host,
    Hosting,
)

NODES = 4


def chosen(hosting: Hosting, *missing: int, now_s: float = 0.0) -> dict[int, int]:
    """The hosts that are chosen now, by node."""
    found = hosting.choose(now_s, missing, {}, step=10)
    return {node: host.node for node, host in found.items()}


@pytest.fixture
def hosting() -> Hosting:
    return Hosting(NODES, 2)


def test_lost_node_is_hosted_at_once(hosting: Hosting) -> None:
    hosting.lose(3, 0.0)

    assert chosen(hosting, 3) == {3: 1}
    assert chosen(hosting, 3) == {}
    assert hosting.hosted_by(1) == {3: 1}


def test_each_host_gets_its_share(hosting: Hosting) -> None:
    for node in (2, 3):
        hosting.lose(node, 0.0)

    assert chosen(hosting, 2, 3) == {2: 1, 3: 0}


def test_too_few_nodes_host_none(hosting: Hosting) -> None:
    for node in (1, 2, 3):
        hosting.lose(node, 0.0)

    assert chosen(hosting, 1, 2, 3) == {}
    assert chosen(hosting, 1, 2) == {1: 3, 2: 0}, "one of them has been replaced"


def test_job_with_all_nodes_hosts_none() -> None:
    hosting = Hosting(NODES, None)
    hosting.lose(3, 0.0)

    assert chosen(hosting, 3) == {}
    assert not hosting.is_elastic


def test_replaced_node_is_not_hosted(hosting: Hosting) -> None:
    hosting.lose(3, 0.0)

    assert chosen(hosting) == {}
    assert chosen(hosting, 3) == {}, "it is lost again, which has not been recorded"


def test_loss_of_a_host_moves_its_guests(hosting: Hosting) -> None:
    hosting.lose(3, 0.0)
    first = hosting.choose(0.0, [3], {}, step=10)[3]

    hosting.lose(first.node, 1.0)

    found = hosting.choose(1.0, [1, 3], {1: 0, 3: first.start}, step=10)
    assert {node: host.node for node, host in found.items()} == {1: 2, 3: 0}
    assert found[3].start > first.start


def test_starts_are_later_than_those_of_the_launcher(hosting: Hosting) -> None:
    hosting.lose(3, 0.0)

    assert hosting.choose(0.0, [3], {3: 2000}, step=10) == {3: Host(1, 2001, 10)}


def test_replacement_that_does_not_take_over_is_given_up(hosting: Hosting) -> None:
    hosting.lose(3, 0.0)
    chosen(hosting, 3)

    hosting.move(3, 5.0)

    assert hosting.hosts == {}
    assert chosen(hosting, 3, now_s=5.0 + MOVE_TIMEOUT_S / 2) == {}
    assert chosen(hosting, 3, now_s=5.0 + MOVE_TIMEOUT_S) == {3: 1}


def test_ranks_that_fail_on_hosts_are_no_longer_hosted(hosting: Hosting) -> None:
    hosting.lose(3, 0.0)
    for failure in range(MAX_FAILURES + 1):
        assert chosen(hosting, 3, now_s=failure) == {3: 1}
        hosting.fail(3, failure)

    assert chosen(hosting, 3, now_s=100.0) == {}
    hosting.lose(2, 100.0)
    assert chosen(hosting, 2, 3, now_s=100.0) == {}


def test_replacements_wait_while_a_host_has_the_ranks(hosting: Hosting) -> None:
    hosting.lose(3, 0.0)
    chosen(hosting, 3)

    assert hosting.held(HOST_TIMEOUT_S / 2, [3]) == {3: 1}, "the ranks start on their host"
    assert hosting.held(HOST_TIMEOUT_S, [3]) == {}, "their host hangs"
    assert hosting.held(HOST_TIMEOUT_S, []) == {3: 1}, "they run there"
    assert hosting.end(3)
    assert hosting.held(0.0, []) == {}


def test_start_on_a_host_is_never_repeated(hosting: Hosting) -> None:
    hosting.lose(3, 0.0)
    first = hosting.choose(0.0, [3], {3: 0}, step=10)[3]
    hosting.lose(3, 1.0)  # The ranks have not connected from there.

    second = hosting.choose(1.0, [3], {3: 0}, step=10)[3]

    assert second.start > first.start, "the wrapper on the first host could still connect"


def test_hosts_and_hosted_nodes_that_are_lost_are_forgotten(hosting: Hosting) -> None:
    for node in (2, 3):
        hosting.lose(node, 0.0)
    chosen(hosting, 2, 3)
    hosts = {node: host.node for node, host in hosting.hosts.items()}

    kept = hosting.starts_of([3])
    hosting.retain([0, 1, 3])

    assert kept == {3: hosting.hosts[3].start}
    assert {node: host.node for node, host in hosting.hosts.items()} == {3: hosts[3]}
    hosting.retain({0, 1, 2, 3} - {hosts[3]})
    assert hosting.hosts == {}
