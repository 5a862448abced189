"""Ranks of all nodes start again once a lost node has been replaced, from snapshots in the memory of the others."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import WAITS_FILE
from holdfast_worker.watchdog.restart_agreement import RECONNECT_S
from worker.support.run_driver import free_port
from worker.support.watchdogs import Node, joined, poll_until


@pytest.fixture
def port() -> int:
    return free_port()


def test_ranks_start_again_once_a_lost_node_is_replaced(tmp_path: Path, port: int) -> None:
    first, second = (Node(tmp_path, node, 2, port, keeps_snapshots=True) for node in (0, 1))
    first.run_dir.announce_waiting()

    with first.watchdog.opened():
        with joined(second, first):
            second.watchdog.agreement.votes[1] = True  # Its ranks had ended before it was lost.
            second.watchdog._resend()
            poll_until(lambda: 1 in first.watchdog.agreement.votes, first)
        poll_until(lambda: first.cause, first)
        with ThreadPoolExecutor() as pool:
            decision = pool.submit(first.watchdog.agree_on_restart, may_restart=True)
            time.sleep(RECONNECT_S + 0.5)
            is_early = decision.done()
            new = Node(tmp_path, 1, 2, port, start=1, keeps_snapshots=True)
            with new.watchdog.opened():
                poll_until(lambda: new.cause, new)
                is_hasty = decision.done()
                agreed = new.watchdog.agree_on_restart(may_restart=True)

    assert (is_early, is_hasty, agreed, decision.result()) == (False, False, True, True)
    assert first.cause == new.cause
    assert new.cause
    assert new.cause.is_node_lost
    assert (first.run_dir.path / WAITS_FILE).exists(), "the launcher may replace another one"


def test_wait_for_a_replacement_has_a_limit(tmp_path: Path, port: int) -> None:
    hurried = Node(tmp_path, 0, 2, port, lambda: 200 * time.monotonic(), keeps_snapshots=True)
    hurried.run_dir.announce_waiting()

    with hurried.watchdog.opened():
        assert not hurried.watchdog.agree_on_restart(may_restart=True)

    assert not (hurried.run_dir.path / WAITS_FILE).exists()
