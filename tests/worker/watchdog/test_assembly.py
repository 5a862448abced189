"""Ranks start together once the nodes of all groups are there; later nodes join them."""

from __future__ import annotations

import pytest
from holdfast_worker.watchdog.assembly import LEADER_TIMEOUT_S, LOG_EVERY_S, Assembly, AssemblyWait

HOURS_S = 10_000.0


def wait(node: int, start: int = 0) -> AssemblyWait:
    return AssemblyWait(node, 3, start, 0.0)


def test_nodes_wait_for_as_long_as_one_is_missing() -> None:
    leader, other = wait(0), wait(1)

    for now_s in range(0, int(HOURS_S), 10):
        assert leader.poll(now_s, {1}, {}, None) is None
        assert other.poll(now_s, {0}, {}, None) is None


@pytest.mark.parametrize(
    ("node", "start", "found"),
    [
        (0, 0, Assembly.STARTS),
        (1, 0, Assembly.STARTS),
        (2, 1000, Assembly.STARTS),
        (1, 1000, Assembly.JOINS),
        (2, 2000, Assembly.JOINS),
    ],
)
def test_node_that_comes_later_joins(node: int, start: int, found: Assembly) -> None:
    assert wait(node, start).poll(1.0, {0}, {}, {1: 0, 2: 1000}) is found


def test_node_looks_for_another_leader_if_there_is_none() -> None:
    other = wait(1)

    early = other.poll(LEADER_TIMEOUT_S - 1, set(), {}, None)
    connected = other.poll(LEADER_TIMEOUT_S, {0}, {}, None)
    lost = other.poll(2 * LEADER_TIMEOUT_S - 1, set(), {}, None)

    assert (early, connected, lost) == (None, None, None)
    assert other.poll(2 * LEADER_TIMEOUT_S + 1, set(), {}, None) is Assembly.HAS_NO_LEADER
    assert wait(1).poll(1.0, {0}, {0: 75}, None) is Assembly.HAS_NO_LEADER


def test_missing_nodes_are_logged_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    leader = wait(0)

    for now_s in range(int(LOG_EVERY_S + 20)):
        leader.poll(now_s, {1}, {}, None)

    log = capfd.readouterr()
    assert (log.out + log.err).count("waiting for node 2\n") == 2
