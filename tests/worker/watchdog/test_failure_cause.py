"""Failure causes: the classification of one failure, and the election among several."""

from __future__ import annotations

import signal

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import ExitReason, Failure
from holdfast_worker.watchdog.failure_cause import (
    ELECTION_S,
    NODE_LOST_S,
    CauseElection,
    FailureCause,
    cause_of_failure,
    is_coordinated_exit,
)

GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed "
    "by peer [10.0.0.2]:4324. This is typically caused by a remote worker crashing."
)
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2, remote process exited"
KILLED = FailureCause(137, 9, "rank 5 on node 1 was killed by signal 9")
CONSEQUENCE = FailureCause(1, 9, GLOO, is_consequence=True)
STEP = 9


def fall(
    code: int, left: ExitReason | None = None, line: str = "", where: str = ""
) -> FailureCause:
    return cause_of_failure(Failure(5, code), left, line, STEP, where)


def exit_reason(message: str, rank: int = 0) -> ExitReason:
    return ExitReason("failed", 1, STEP, message, rank)


def test_killed_rank_outranks_a_consequence_message() -> None:
    cause = fall(137, exit_reason(GLOO), where=" on node 1")

    assert cause == KILLED


def test_last_error_is_reported_verbatim() -> None:
    cause = fall(1, exit_reason("ValueError: no such column", rank=5))

    assert cause == FailureCause(1, STEP, "ValueError: no such column")


def test_error_names_its_rank_on_several_nodes() -> None:
    cause = fall(1, exit_reason("ValueError: no such column", rank=5), where=" on node 1")

    assert cause.detail == "rank 5 on node 1: ValueError: no such column"


def test_abort_after_an_error_is_reported_as_that_error() -> None:
    cause = fall(128 + signal.SIGABRT, exit_reason("CUDA error: out of memory"))

    assert cause.detail == "CUDA error: out of memory"
    assert fall(128 + signal.SIGABRT).detail == "rank 5 was killed by signal 6"


def test_script_without_a_run_is_described_by_its_last_line() -> None:
    assert fall(3, line="so good").detail == "rank 5: so good"


@pytest.mark.parametrize("message", [GLOO, NCCL])
def test_lost_connection_message_is_a_consequence(message: str) -> None:
    assert fall(1, exit_reason(message)).is_consequence
    assert fall(1, line=message).is_consequence
    assert not fall(1, exit_reason("RuntimeError: shape mismatch")).is_consequence


@pytest.mark.parametrize(
    ("left", "agreed"),
    [
        (None, False),
        (ExitReason("failed", 1, 9), False),
        (ExitReason("failed", 124, 9), False),
        (ExitReason("finished", 0, 9), True),
        (ExitReason("preempted", 75, 9), True),
        (ExitReason("failed", Exit.FENCED, 9), True),
        (ExitReason("failed", Exit.UNUSABLE_STORE, 9), True),
    ],
)
def test_coordinated_exit_is_distinguished_from_one_failure(
    left: ExitReason | None, agreed: bool
) -> None:
    assert is_coordinated_exit(left) is agreed


def test_first_node_elects_the_first_cause_at_once() -> None:
    election = CauseElection(is_leader=True)
    election.add(100.0, KILLED)
    election.add(100.0, FailureCause(1, 9, "ValueError: another"))

    assert election.elect(100.0, STEP) == KILLED


def test_consequence_is_elected_only_without_a_better_cause() -> None:
    election = CauseElection(is_leader=True)
    election.add(100.0, CONSEQUENCE)
    at_first = election.elect(100.0 + ELECTION_S / 2, STEP)
    alone = election.elect(100.1 + ELECTION_S, STEP)
    election.add(100.0 + ELECTION_S, KILLED)

    assert at_first is None
    assert alone == CONSEQUENCE
    assert election.elect(100.0 + ELECTION_S, STEP) == KILLED


def test_other_nodes_wait_for_the_cause_elected_by_the_first() -> None:
    election = CauseElection(is_leader=False)
    election.add(100.0, KILLED)

    assert election.elect(100.0 + ELECTION_S / 2, STEP) is None
    assert election.elect(100.1 + ELECTION_S, STEP) == KILLED


def test_other_nodes_do_not_wait_for_a_lost_first_node() -> None:
    election = CauseElection(is_leader=False)
    election.mark_disconnected(99.0, 0)
    election.add(100.0, KILLED)

    assert election.elect(100.0, STEP) == KILLED


def test_node_that_does_not_reconnect_is_lost() -> None:
    election = CauseElection(is_leader=True)
    election.mark_disconnected(100.0, 2)

    assert election.elect(99.9 + NODE_LOST_S, STEP) is None
    gone = election.elect(100.1 + NODE_LOST_S, STEP)
    assert gone == FailureCause(
        1,
        STEP,
        "node 2 is lost: its connection broke and did not recover",
        is_consequence=True,
        has_rank_died=False,
    )


def test_node_that_reconnects_in_time_is_not_lost() -> None:
    election = CauseElection(is_leader=True)
    election.mark_disconnected(100.0, 2)
    election.mark_connected(2)
    election.mark_disconnected(105.0, 2)

    assert election.elect(101.0 + NODE_LOST_S, STEP) is None


def test_nodes_taken_within_seconds_are_lost_together() -> None:
    choice = CauseElection(is_leader=True)
    choice.mark_disconnected(0.0, 1)
    choice.mark_disconnected(6.0, 2)

    assert choice.lost_nodes(NODE_LOST_S, is_suspected=False) == []
    assert choice.lost_nodes(NODE_LOST_S + 1, is_suspected=False) == [1, 2]


def test_node_lost_during_a_failure_is_reported_at_once() -> None:
    election = CauseElection(is_leader=True)
    election.mark_disconnected(100.0, 2)
    election.add(100.1, CONSEQUENCE)

    gone = election.elect(100.2, STEP)

    assert gone
    assert gone.detail.startswith("node 2 is lost")


def test_restarted_timeouts_give_lost_nodes_time_to_reconnect() -> None:
    election = CauseElection(is_leader=True)
    election.mark_disconnected(100.0, 2)

    election.restart_timeouts(5000.0)

    assert election.elect(5001.0, STEP) is None
    assert election.elect(5001.0 + NODE_LOST_S, STEP)


def test_node_loss_after_a_notice_is_a_preemption() -> None:
    gone = FailureCause(1, STEP, "node 2 is gone", is_consequence=True)

    assert gone.to_exit_reason(is_noticed=True) == ExitReason(
        "preempted", Exit.PREEMPTED, STEP, "node 2 is gone"
    )
    assert gone.to_exit_reason(is_noticed=False) == ExitReason("failed", 1, STEP, "node 2 is gone")
    assert KILLED.to_exit_reason(is_noticed=True) == ExitReason("failed", 137, STEP, KILLED.detail)
