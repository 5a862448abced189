"""The leader forms a group when every rank asks for one, and gives up in time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog.failure_cause import ELECTION_S, FailureCause
from holdfast_worker.watchdog.group_files import GroupAnswer, GroupFiles, GroupRequest
from holdfast_worker.watchdog.regrouping import (
    MAX_RECOVERIES,
    NODE_TIMEOUT_S,
    RECOVERY_TIMEOUT_S,
    Regrouping,
)

NODES = 3
KILLED = FailureCause(137, 5, "rank 1 on node 1 was killed by signal 9")


@pytest.fixture
def regrouping() -> Regrouping:
    return Regrouping(NODES)


def request(rank: int, generation: int = 1, *, is_new: bool = False) -> GroupRequest:
    return GroupRequest(rank=rank, generation=generation, address=f"host:{rank}", is_new=is_new)


def test_group_is_formed_when_all_ranks_ask(regrouping: Regrouping) -> None:
    lost = regrouping.begin(0.0, KILLED, 1)
    regrouping.update(1, [request(1, is_new=True)])
    regrouping.update(2, [request(2)])
    early = regrouping.form()
    regrouping.update(0, [request(0)])

    formed = regrouping.form()

    assert (lost.generation, lost.is_formed, early) == (1, False, None)
    assert formed == GroupAnswer(generation=1, address="host:0", cause=KILLED.detail)
    assert regrouping.form() is None


def test_store_of_the_group_is_on_a_survivor(regrouping: Regrouping) -> None:
    regrouping.begin(0.0, KILLED, 0)
    for rank in range(NODES):
        regrouping.update(rank, [request(rank, is_new=rank == 0)])

    formed = regrouping.form()

    assert formed
    assert formed.address == "host:1"


def test_new_ranks_alone_form_no_group(regrouping: Regrouping) -> None:
    for rank in range(NODES):
        regrouping.update(rank, [request(rank, is_new=True)])

    assert regrouping.form() is None


def test_request_for_an_earlier_group_does_not_count(regrouping: Regrouping) -> None:
    for rank in range(NODES):
        regrouping.update(rank, [request(rank)])
    regrouping.form()
    regrouping.update(0, [request(0, 2)])
    regrouping.update(1, [request(1, 2)])

    assert regrouping.form() is None


def test_wait_for_a_node_of_another_group_has_no_limit() -> None:
    regrouping = Regrouping(NODES, math.inf)
    regrouping.update(0, [request(0)])
    regrouping.is_overdue(0.0, 0.0, is_isolated=False, waits_for_node=True)

    assert not regrouping.is_overdue(1e6, 0.0, is_isolated=False, waits_for_node=True)
    assert regrouping.is_overdue(1e6, 0.0, is_isolated=True, waits_for_node=True)


def test_broken_connections_alone_lead_to_a_new_group(regrouping: Regrouping) -> None:
    for rank in range(NODES):
        regrouping.update(rank, [request(rank, 3)])

    formed = regrouping.form()

    assert formed == GroupAnswer(generation=3, address="host:0")


def test_second_lost_node_joins_the_same_recovery(regrouping: Regrouping) -> None:
    regrouping.begin(0.0, KILLED, 1)

    assert regrouping.can_replace(KILLED, 2, NODES)
    regrouping.begin(0.1, KILLED, 2)
    assert not regrouping.can_replace(KILLED, 0, NODES)


def test_repeated_loss_at_one_step_is_not_recovered(regrouping: Regrouping) -> None:
    for _ in range(MAX_RECOVERIES):
        assert regrouping.can_replace(KILLED, 1, NODES)
        regrouping.begin(0.0, KILLED, 1)
        regrouping.loss = None

    assert not regrouping.can_replace(KILLED, 1, NODES)
    assert regrouping.can_replace(FailureCause(137, 6, "later"), 1, NODES)


@pytest.mark.parametrize(
    "cause",
    [
        FailureCause(1, 5, "NotRecoverable: a reason", is_consequence=True),
        FailureCause(1, 5, "node 1 is lost", has_rank_died=False),
        FailureCause(2, 5, "the script has an error"),
    ],
)
def test_cause_that_new_ranks_do_not_mend_is_refused(
    regrouping: Regrouping, cause: FailureCause
) -> None:
    assert not regrouping.can_replace(cause, 1, NODES)


def test_missing_ranks_are_awaited_for_as_long_as_a_start(regrouping: Regrouping) -> None:
    regrouping.update(0, [request(0)])
    first = regrouping.is_overdue(100.0, 10.0, is_isolated=False)

    assert not first
    assert not regrouping.is_overdue(100.0 + RECOVERY_TIMEOUT_S + 19, 10.0, is_isolated=False)
    assert regrouping.is_overdue(100.0 + RECOVERY_TIMEOUT_S + 21, 10.0, is_isolated=False)


def test_ranks_of_an_isolated_node_wait_briefly(regrouping: Regrouping) -> None:
    regrouping.update(0, [request(0)])
    regrouping.is_overdue(100.0, 10.0, is_isolated=True)

    assert regrouping.is_overdue(100.0 + ELECTION_S + 1, 10.0, is_isolated=True)


def test_answered_request_is_not_overdue(regrouping: Regrouping) -> None:
    regrouping.update(0, [request(0)])
    regrouping.is_overdue(100.0, 0.0, is_isolated=False)

    regrouping.accept(GroupAnswer(generation=1, address="host:1"))

    assert not regrouping.is_overdue(1000.0, 0.0, is_isolated=False)
    assert not regrouping.has_waiting


def test_waiting_rank_is_a_sign_of_an_unknown_loss(regrouping: Regrouping) -> None:
    regrouping.update(0, [request(0)])
    unknown = regrouping.has_waiting
    regrouping.begin(0.0, KILLED, 1)

    assert (unknown, regrouping.has_waiting) == (True, False)


def test_files_of_a_node_hold_requests_and_the_answer(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.clear()
    files = GroupFiles(run_dir)
    files.request(request(1))
    files.request(request(0, 2))
    generations = [files.generation()]
    for answer in (GroupAnswer(generation=1), GroupAnswer(generation=1, address="host:1")):
        files.answer(answer)
        generations.append(files.generation())

    assert [each.rank for each in files.requests()] == [0, 1]
    assert generations == [0, 1, 2]
    assert files.wait(1, lambda: None).address == "host:1"


def test_files_of_ended_ranks_are_cleared(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.clear()
    files = GroupFiles(run_dir)
    files.request(request(0))
    files.answer(GroupAnswer(generation=1))

    run_dir.clear_ranks()

    assert files.requests() == []
    assert files.read_answer() == GroupAnswer(generation=1)
    run_dir.clear_group()
    assert files.read_answer() is None


def test_requests_of_a_lost_node_do_not_count(regrouping: Regrouping) -> None:
    regrouping.update(1, [request(1)])  # It asked because of another loss, and was lost itself.
    regrouping.begin_node(0.0, KILLED, 1)
    for rank in (0, 2):
        regrouping.update(rank, [request(rank)])
    early = regrouping.form()
    regrouping.mark_present(1)
    regrouping.update(1, [request(1, is_new=True)])

    formed = regrouping.form()

    assert early is None
    assert formed
    assert not regrouping.missing


def test_missing_node_is_awaited_for_longer_than_ranks(regrouping: Regrouping) -> None:
    def is_overdue(now_s: float) -> bool:
        missing = bool(regrouping.missing)
        return regrouping.is_overdue(now_s, 0.0, is_isolated=False, waits_for_node=missing)

    regrouping.begin_node(0.0, KILLED, 1)
    regrouping.update(0, [request(0)])
    first, late = is_overdue(0.0), is_overdue(NODE_TIMEOUT_S - 1)
    regrouping.mark_present(1)
    back, soon = is_overdue(NODE_TIMEOUT_S), is_overdue(NODE_TIMEOUT_S + RECOVERY_TIMEOUT_S - 1)

    assert [first, late, back, soon] == [False] * 4
    assert is_overdue(NODE_TIMEOUT_S + RECOVERY_TIMEOUT_S + 1)


def test_node_that_is_missing_for_too_long_is_given_up(regrouping: Regrouping) -> None:
    regrouping.begin_node(0.0, KILLED, 1)
    regrouping.update(0, [request(0)])
    regrouping.is_overdue(0.0, 0.0, is_isolated=False, waits_for_node=True)

    assert regrouping.is_overdue(NODE_TIMEOUT_S + 1, 0.0, is_isolated=False, waits_for_node=True)
