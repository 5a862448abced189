"""Watchdogs of several nodes agree on one failure cause, over run directories without ranks."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import ExitReason, Failure, RunDir
from holdfast_worker.watchdog.failure_cause import FINAL_SAVE_S, NODE_LOST_S, FailureCause
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase
from holdfast_worker.watchdog.node_channel import ChannelAddress
from holdfast_worker.watchdog.restart_agreement import RESTART_AGREEMENT_S
from holdfast_worker.watchdog.stack_dump import is_stopped
from holdfast_worker.watchdog.watchdog import IDLE_GRACE_S, Watchdog
from worker.support.run_driver import free_port, wait_until
from worker.support.watchdogs import SHORT, Node, joined, poll_until, together

CONSEQUENCE = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:29369"
)


@pytest.fixture
def port() -> int:
    return free_port()


@contextmanager
def polling(node: Node) -> Iterator[None]:
    """Poll a watchdog in a thread, as a hang inspection waits for other nodes."""
    is_over = threading.Event()

    def poll_until_stopped() -> None:
        while not is_over.wait(0.02):
            node.watchdog.poll()

    thread = threading.Thread(target=poll_until_stopped)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def stopped_process() -> Iterator[int]:
    """The id of a process that is stopped by SIGSTOP."""
    with subprocess.Popen(["sleep", "600"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("dead", [0, 1])
def test_killed_rank_is_the_cause_on_both_nodes(tmp_path: Path, port: int, dead: int) -> None:
    now_s = time.monotonic()
    nodes = [Node(tmp_path, node, 2, port, lambda: now_s) for node in (0, 1)]

    with together(*nodes):
        nodes[dead].kill_rank()
        poll_until(lambda: all(node.cause for node in nodes), *nodes)

    text = f"rank {dead} on node {dead} was killed by signal 9"
    assert nodes[0].cause == nodes[1].cause == FailureCause(137, 0, text)
    assert [node.run_dir.exit_reason() for node in nodes] == [
        ExitReason("failed", 137, 0, text)
    ] * 2
    assert not any(
        node.watchdog.must_kill for node in nodes
    )  # The ranks have some seconds to exit themselves.


def test_node_that_failed_in_consequence_reports_the_root_cause(tmp_path: Path, port: int) -> None:
    now_s = time.monotonic()
    nodes = [Node(tmp_path, node, 2, port, lambda: now_s) for node in (0, 1)]

    with together(*nodes):
        nodes[0].fail_rank(CONSEQUENCE)
        nodes[0].watchdog.poll()
        nodes[1].kill_rank()
        poll_until(lambda: all(node.cause for node in nodes), *nodes)

    left = nodes[0].run_dir.exit_reason()
    assert left
    assert left.detail == "rank 1 on node 1 was killed by signal 9"


@pytest.mark.parametrize(
    ("dying_s", "is_time_left"),
    [(FINAL_SAVE_S - 1, True), (FINAL_SAVE_S + 1, False)],
    ids=["saved", "timed-out"],
)
def test_ranks_end_at_once_after_a_save_timeout(
    tmp_path: Path, port: int, dying_s: float, is_time_left: bool
) -> None:
    """A rank that raises waits for its save, which waits for shards that may never be written."""
    now_s = [time.monotonic()]
    nodes = [Node(tmp_path, node, 2, port, lambda: now_s[0]) for node in (0, 1)]

    with together(*nodes):
        nodes[1].run_dir.record_exit(
            ExitReason("failed", 1, 5, "RuntimeError: DataLoader worker died", 1)
        )
        nodes[1].watchdog.poll()
        now_s[0] += dying_s
        nodes[1].run_dir.record_failure(Failure(1, 1))
        poll_until(lambda: all(node.cause for node in nodes), *nodes)

    assert [node.watchdog.must_kill for node in nodes] == [not is_time_left] * 2


@pytest.mark.parametrize(
    ("saving", "is_time_left"),
    [([], False), ([0], True), ([0, 1], False)],
    ids=["none", "the-other", "the-dead-one"],
)
def test_only_a_save_that_can_succeed_gets_time(
    tmp_path: Path, saving: list[int], is_time_left: bool
) -> None:
    now_s = [time.monotonic()]
    run_dir = RunDir(tmp_path)
    run_dir.clear()
    heartbeats = [HeartbeatWriter.create(run_dir, rank) for rank in (0, 1)]
    channel_address = ChannelAddress(0, 1, "127.0.0.1", [], "a run")
    watchdog = Watchdog(run_dir, [0, 1], channel_address, SHORT, lambda: now_s[0])
    for rank in saving:
        heartbeats[rank].mark_saving(is_under_way=True)

    run_dir.record_failure(Failure(1, 137))
    watchdog.poll()
    is_killed_at_once = watchdog.must_kill
    now_s[0] += IDLE_GRACE_S + 0.1
    watchdog.poll()

    assert not is_killed_at_once
    assert watchdog.must_kill is not is_time_left


def test_all_nodes_agree_on_one_of_two_causes(tmp_path: Path, port: int) -> None:
    nodes = [Node(tmp_path, node, 2, port) for node in (0, 1)]

    with together(*nodes):
        nodes[1].kill_rank(11)
        nodes[0].kill_rank(7)
        poll_until(lambda: all(node.cause for node in nodes), *nodes)

    assert nodes[0].cause == nodes[1].cause


def test_node_that_left_on_notice_is_not_reported_lost(tmp_path: Path, port: int) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with first.watchdog.opened():
        with joined(second, first):
            second.run_dir.record_exit(ExitReason("preempted", Exit.PREEMPTED, 5))
            second.run_dir.record_failure(Failure(1, Exit.PREEMPTED))
            second.watchdog.poll()
            second.finish(Exit.PREEMPTED)
        poll_until(lambda: not first.watchdog._connected, first)
        later_s = time.monotonic() + 10 * NODE_LOST_S

        assert first.watchdog._election.elect(later_s, 5) is None
    assert second.cause is None


def test_reconnected_node_is_not_reported_lost(tmp_path: Path, port: int) -> None:
    first = Node(tmp_path, 0, 2, port)

    with first.watchdog.opened():
        with joined(Node(tmp_path, 1, 2, port), first):
            pass
        poll_until(lambda: not first.watchdog._connected, first)
        is_missed = first.watchdog._election.elect(time.monotonic() + 2 * NODE_LOST_S, 5)
        with joined(Node(tmp_path, 1, 2, port), first):
            later = first.watchdog._election.elect(time.monotonic() + 2 * NODE_LOST_S, 5)

    assert is_missed
    assert later is None


def test_node_lost_without_notice_is_reported_as_lost(tmp_path: Path, port: int) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with first.watchdog.opened():
        with joined(second, first):
            pass
        first.fail_rank(CONSEQUENCE)
        poll_until(lambda: first.cause, first)

    left = first.run_dir.exit_reason()
    assert left == ExitReason(
        "failed", 1, 0, "node 1 is lost: its connection broke and did not recover"
    )
    assert first.watchdog.must_kill


def test_node_lost_after_a_notice_counts_as_preempted(tmp_path: Path, port: int) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with first.watchdog.opened():
        with joined(second, first):
            pass
        first.run_dir.record_notice(None)
        first.fail_rank(CONSEQUENCE)
        poll_until(lambda: first.cause, first)

    left = first.run_dir.exit_reason()
    assert left
    assert (left.reason, left.exit_code) == ("preempted", Exit.PREEMPTED)


def test_node_lost_after_training_is_not_reported(tmp_path: Path, port: int) -> None:
    """The first node still works on the results, without the other node."""
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with first.watchdog.opened():
        with joined(second, first):
            first.run_dir.record_exit(ExitReason("finished", 0, 40))
        poll_until(lambda: not first.watchdog._connected, first)
        lost_s = time.monotonic()
        poll_until(lambda: time.monotonic() > lost_s + 0.5, first)

        assert first.watchdog._election.elect(lost_s + NODE_LOST_S, 40) is None


def test_script_failing_after_its_training_ends_the_other_node(tmp_path: Path, port: int) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with together(first, second):
        second.run_dir.record_exit(ExitReason("finished", 0, 40))
        second.run_dir.record_failure(Failure(1, 3))
        second.watchdog.poll()
        second.finish(3)
        poll_until(lambda: first.cause, first)

    assert second.cause is None
    assert first.cause
    assert first.cause.detail == "node 1 ended with exit code 3"


@pytest.mark.parametrize("may_restart", [True, False])
def test_ranks_start_again_if_all_nodes_permit_it(
    tmp_path: Path, port: int, may_restart: bool
) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with together(first, second), ThreadPoolExecutor() as pool:
        decisions = [
            pool.submit(first.watchdog.agree_on_restart, may_restart=True),
            pool.submit(second.watchdog.agree_on_restart, may_restart=may_restart),
        ]

        assert [each.result() for each in decisions] == [may_restart, may_restart]


def test_ranks_end_if_a_node_has_ended(tmp_path: Path, port: int) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with together(first, second):
        second.finish(Exit.PREEMPTED)

        assert not first.watchdog.agree_on_restart(may_restart=True)


def test_vote_of_a_node_that_is_lost_since_does_not_count(tmp_path: Path, port: int) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with first.watchdog.opened():
        with joined(second, first):
            second.watchdog.agreement.votes[1] = True
            second.watchdog._resend()
            poll_until(lambda: 1 in first.watchdog.agreement.votes, first)
        poll_until(lambda: not first.watchdog._connected, first)

        assert not first.watchdog.agree_on_restart(may_restart=True)


@pytest.mark.parametrize("lost", [0, 1])
def test_ranks_end_if_a_node_is_lost(tmp_path: Path, port: int, lost: int) -> None:
    now_s = itertools.count(0.0, 0.1)
    nodes = [Node(tmp_path, node, 2, port, lambda: next(now_s)) for node in (0, 1)]
    left = nodes[1 - lost]

    with left.watchdog.opened():
        with nodes[lost].watchdog.opened():
            poll_until(lambda: left.watchdog._connected, left)
        poll_until(lambda: not left.watchdog._connected, left)
        began_s = next(now_s)

        assert not left.watchdog.agree_on_restart(may_restart=True)

    assert next(now_s) - began_s < RESTART_AGREEMENT_S


def test_replaced_node_ends_the_other(tmp_path: Path, port: int) -> None:
    nodes = [Node(tmp_path, node, 2, port) for node in (0, 1)]
    replaced = FailureCause(
        Exit.FENCED, 0, "another worker has mustered since", has_rank_died=False
    )

    with together(*nodes):
        nodes[0].watchdog.stop_all(replaced)
        poll_until(lambda: nodes[1].cause, *nodes)

    assert nodes[1].cause == replaced
    assert all(node.watchdog.must_kill for node in nodes)


def test_coordinated_exit_is_not_a_failure_cause(tmp_path: Path, port: int) -> None:
    alone = Node(tmp_path, 0, 1, port)
    alone.run_dir.record_exit(
        ExitReason("failed", Exit.UNUSABLE_STORE, 0, "the store cannot be used")
    )
    alone.run_dir.record_failure(Failure(0, Exit.UNUSABLE_STORE))

    alone.watchdog.poll()
    alone.finish(Exit.UNUSABLE_STORE)

    assert alone.cause is None


def test_failure_of_torchrun_is_the_cause(tmp_path: Path, port: int) -> None:
    alone = Node(tmp_path, 0, 1, port)

    alone.finish(1)

    assert alone.cause
    assert alone.cause.detail == "torchrun ended with exit code 1"


def test_stalled_rank_is_identified_across_nodes(tmp_path: Path, port: int) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with together(first, second):
        for node in (first, second):
            node.heartbeat.complete_step(7)
        second.heartbeat.enter(Phase.LOADING)
        with first.heartbeat.waiting_for_ranks(), polling(first):
            poll_until(lambda: first.cause and second.cause, second)

    assert first.cause == second.cause
    assert first.cause
    assert first.cause.exit_code == Exit.STALLED
    assert re.fullmatch(
        r"rank 1 on node 1 made no step for \d+ s after step 7: it was loading a batch; "
        r"the other one waited for it",
        first.cause.detail,
    )
    assert first.watchdog.must_kill
    assert second.watchdog.must_kill


def test_second_stall_is_attributed_by_new_inspections(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    def is_printed(text: str) -> bool:
        return text in capsys.readouterr().err

    with together(first, second), stopped_process() as pid:
        second.run_dir.register(1, pid)
        for node in (first, second):
            node.heartbeat.enter(Phase.STEPPING)
            node.heartbeat.complete_step(7)
        with polling(first):
            wait_until(lambda: is_printed("no rank made a step"))
            first.heartbeat.complete_step(8)
            poll_until(lambda: is_printed("a rank has progressed"), second)
            os.kill(pid, signal.SIGCONT)
            poll_until(lambda: first.cause, second)

    assert first.cause
    assert re.fullmatch(
        r"no rank made a step for \d+ s after step 8: rank 0 was in its step, rank 1 was in its step",
        first.cause.detail,
    )


def test_one_live_rank_keeps_the_ranks_of_all_nodes(tmp_path: Path, port: int) -> None:
    first, second = (Node(tmp_path, node, 2, port) for node in (0, 1))

    with together(first, second):
        for node in (first, second):
            node.heartbeat.complete_step(7)
        second.heartbeat.enter(Phase.STEPPING)
        with first.heartbeat.waiting_for_ranks():
            until_s = time.monotonic() + 2 * SHORT.limit_s

            def live() -> bool:
                second.heartbeat.mark_alive()
                return time.monotonic() > until_s

            poll_until(live, first, second)

    assert first.cause is None
    assert second.cause is None
