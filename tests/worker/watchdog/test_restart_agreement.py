"""Ranks start again if all nodes of one placement agree, or those that are there of several groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.watchdog.failure_cause import FailureCause
from holdfast_worker.watchdog.messages import RanksEnded, RestartDecision
from holdfast_worker.watchdog.regrouping import NODE_TIMEOUT_S
from holdfast_worker.watchdog.restart_agreement import (
    RECONNECT_S,
    RESTART_AGREEMENT_S,
    RestartAgreement,
)

KILLED = FailureCause(137, 5, "rank 1 on node 1 was killed by signal 9")


class Agreement(RestartAgreement):
    """An agreement of three nodes, which this one has begun."""

    def __init__(self, node: int, *connected: int, may_restart: bool = True) -> None:
        self.others = {*connected}
        super().__init__(node, 3, self.others, is_grouped=True)
        self.begin(0.0, may_restart=may_restart)


def test_leader_of_groups_decides_for_the_nodes_that_are_there() -> None:
    leader = Agreement(0, 1)
    early = leader.is_over(1.0), leader.message
    leader.votes[1] = False  # It only says that its ranks have ended.

    assert early == (False, None)
    assert leader.is_over(1.1)
    assert leader.message == RestartDecision(True)


def test_node_that_is_lost_during_the_agreement_is_not_awaited() -> None:
    leader = Agreement(0, 1, 2)
    leader.votes[1] = True
    early = leader.is_over(1.0)
    leader.others.discard(2)

    assert not early
    assert leader.is_over(1.1)
    assert leader.decision


@pytest.mark.parametrize("may_restart", [True, False])
def test_leader_of_groups_waits_only_so_long(*, may_restart: bool) -> None:
    leader = Agreement(0, 1, 2, may_restart=may_restart)

    assert not leader.is_over(RESTART_AGREEMENT_S - 1)
    assert leader.is_over(RESTART_AGREEMENT_S + 1)
    assert leader.decision is may_restart


def test_node_of_a_group_follows_the_leader() -> None:
    node = Agreement(1, 0, may_restart=False)
    early = node.is_over(RECONNECT_S + 5), node.message
    node.decision = True

    assert early == (False, RanksEnded(False))
    assert node.is_over(RECONNECT_S + 6)
    assert not node.has_lost_leader


def test_leader_that_is_gone_decides_nothing() -> None:
    lost, silent, gone = Agreement(1), Agreement(1, 0), Agreement(1, 0)
    gone.record_exit(0, Exit.PREEMPTED)

    assert lost.is_over(RECONNECT_S + 1)
    assert silent.is_over(2 * RESTART_AGREEMENT_S + RECONNECT_S + 1)
    assert gone.is_over(0.1)
    assert (lost.has_lost_leader, silent.has_lost_leader, gone.has_lost_leader) == (
        True,
        True,
        False,
    )
    assert (lost.leader_leaves, gone.leader_leaves) == (False, True)


def test_loss_of_nodes_is_told_from_a_failure() -> None:
    missing, back, whole = Agreement(0, 1), Agreement(0, 1, 2), Agreement(0, 1, 2)
    back.lost_step = 4

    assert missing.is_loss(KILLED)
    assert back.is_loss(KILLED)
    assert not whole.is_loss(KILLED)
    back.lost_step = 3
    assert not back.is_loss(KILLED), "the run has come further since"


def test_machine_that_takes_the_place_of_an_ended_one_is_awaited() -> None:
    leader = Agreement(0, 1, 2)
    leader.record_exit(2, Exit.PREEMPTED)
    leader.record_return(2)
    leader.votes[1] = True

    assert not leader.is_over(1.0)


def test_vote_of_a_lost_node_is_not_that_of_its_successor() -> None:
    leader = Agreement(0, 1, 2)
    leader.votes |= {1: True, 2: True}
    leader.record_loss(2, step=5)

    early = leader.is_over(1.0)
    leader.votes[2] = True

    assert not early
    assert leader.is_over(1.1)


@pytest.mark.parametrize("is_grouped", [True, False])
def test_loss_that_the_leader_has_announced_counts(*, is_grouped: bool) -> None:
    node = RestartAgreement(1, 3, {0}, is_grouped=is_grouped)

    assert node.is_loss(replace(KILLED, is_node_lost=True))


class TestOnePlacement:
    """Nodes that are replaced one by one, or together."""

    def begun(self, node: int, connected: set[int], *, waits_for_nodes: bool) -> RestartAgreement:
        agreement = RestartAgreement(node, 2, connected, is_grouped=False)
        agreement.begin(0.0, may_restart=True, waits_for_nodes=waits_for_nodes)
        return agreement

    def test_leader_waits_for_a_node_that_is_replaced(self) -> None:
        waits, ends = (self.begun(0, set(), waits_for_nodes=waits) for waits in (True, False))

        assert ends.is_over(RECONNECT_S + 1)
        assert not waits.is_over(NODE_TIMEOUT_S - 1)
        assert waits.is_over(NODE_TIMEOUT_S + 1)
        assert (waits.decision, ends.decision) == (None, None)

    def test_ranks_of_a_new_node_have_their_own_time_to_end(self) -> None:
        connected = set[int]()
        leader = self.begun(0, connected, waits_for_nodes=True)
        leader.is_over(100.0)
        connected.add(1)

        early = leader.is_over(100.0 + RESTART_AGREEMENT_S - 1)
        leader.votes[1] = True

        assert not early
        assert leader.is_over(100.0 + RESTART_AGREEMENT_S)
        assert leader.decision

    def test_other_nodes_outwait_the_leader(self) -> None:
        node = self.begun(1, {0}, waits_for_nodes=True)

        assert not node.is_over(NODE_TIMEOUT_S + RESTART_AGREEMENT_S + 1)
        node.decision = True
        assert node.is_over(NODE_TIMEOUT_S + RESTART_AGREEMENT_S + 2)


def test_nodes_of_groups_are_not_awaited_by_the_agreement() -> None:
    node = RestartAgreement(1, 3, {0}, is_grouped=True)
    node.begin(0.0, may_restart=True, waits_for_nodes=True)

    assert node.is_over(2 * RESTART_AGREEMENT_S + RECONNECT_S + 1)
