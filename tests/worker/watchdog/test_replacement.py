"""Wrappers begin the replacement of lost nodes, and a replacement gives up if no other node waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import WAITS_FILE, Exit
from holdfast_worker.watchdog.failure_cause import FailureCause
from holdfast_worker.watchdog.group_files import GroupFiles, GroupRequest
from holdfast_worker.watchdog.hosting import STARTS_PER_NODE
from holdfast_worker.watchdog.messages import (
    GroupDecision,
    GroupRequests,
    HostingDecision,
)
from holdfast_worker.watchdog.regrouping import NODE_TIMEOUT_S
from holdfast_worker.watchdog.replacement import (
    LEADER_TIMEOUT_S,
    PAUSE_S,
    RECOVERY_PAUSE_S,
    RECOVERY_PAUSES_FOR_S,
)
from worker.support.leading_wrapper import NODES, Wrapper, request, whole_leader

KILLED = FailureCause(137, 5, "rank 1 on node 1 was killed by signal 9")


@pytest.fixture
def leader(tmp_path: Path) -> Wrapper:
    return whole_leader(tmp_path)


def test_disconnected_node_is_replaced_when_a_rank_misses_it(leader: Wrapper) -> None:
    leader.lose(2, 1.0)
    nothing = leader.replacement.poll(1.0), leader.decisions
    leader.replacement.handle(1, GroupRequests((request(1),)))

    leader.replacement.poll(1.1)

    assert nothing == (None, [])
    assert leader.decisions == [1]
    assert leader.election.elect(60.0, 5) is None, "the loss no longer ends the attempt"


def test_polls_are_more_frequent_for_a_while_after_a_loss(leader: Wrapper) -> None:
    pauses = []
    leader.replacement.poll(1.0)
    pauses.append(leader.replacement.pause_s)
    leader.lose(2, 2.0)

    for now_s in (2.0, 2.0 + RECOVERY_PAUSES_FOR_S):
        leader.replacement.poll(now_s)
        pauses.append(leader.replacement.pause_s)

    assert pauses == [PAUSE_S, RECOVERY_PAUSE_S, PAUSE_S]


def test_polls_are_as_before_once_the_group_is_formed(leader: Wrapper) -> None:
    leader.lose(2, 1.0)
    leader.replacement.handle(1, GroupRequests((request(1),)))
    leader.replacement.poll(1.0)
    GroupFiles(leader.run_dir).request(request(0))
    leader.connected.add(2)
    leader.replacement.mark_connected(4.0, 2, 1)
    leader.replacement.poll(4.0)
    while_waiting = leader.replacement.pause_s
    leader.replacement.handle(2, GroupRequests((request(2, is_new=True),)))

    leader.replacement.poll(4.1)
    leader.replacement.poll(4.2)

    assert (while_waiting, leader.replacement.pause_s) == (RECOVERY_PAUSE_S, PAUSE_S)


def test_replacement_polls_more_often_from_its_start(tmp_path: Path) -> None:
    new = Wrapper(tmp_path, 1, is_new=True)

    new.replacement.poll(1.0)

    assert new.replacement.pause_s == RECOVERY_PAUSE_S


def test_rank_fails_after_another_node_has_disconnected(leader: Wrapper) -> None:
    leader.lose(2, 1.0)

    ending = leader.replacement.begin(1.0, KILLED, 1)
    leader.replacement.poll(1.0)

    assert ending is None
    assert leader.decisions == [1, 1], "both are replaced"
    assert leader.election.elect(60.0, 5) is None


def recover_twice(leader: Wrapper) -> None:
    """Recover as often as is possible without a step in between."""
    for generation in (1, 2):
        assert leader.replacement.begin(1.0, KILLED, 1) is None
        if generation == 1:
            requests = [request(rank, is_new=rank == 1) for rank in range(NODES)]
            GroupFiles(leader.run_dir).request(requests[0])
            for node in (1, 2):
                leader.replacement.handle(node, GroupRequests((requests[node],)))
            leader.replacement.poll(1.0)


def test_node_whose_rank_died_first_is_lost_once(leader: Wrapper) -> None:
    recover_twice(leader)

    leader.lose(1, 1.1)
    leader.replacement.poll(1.2)

    assert leader.election.elect(60.0, 5) is None, "it is the same loss"
    assert leader.replacement.begin(1.3, KILLED, 1) is None, "its ranks are being replaced"


def test_new_rank_that_fails_again_ends_the_attempt(leader: Wrapper) -> None:
    recover_twice(leader)

    assert leader.replacement.begin(1.1, KILLED, 1) == KILLED


def test_group_is_formed_with_the_replacement(leader: Wrapper) -> None:
    leader.lose(2, 1.0)
    leader.replacement.handle(1, GroupRequests((request(1),)))
    GroupFiles(leader.run_dir).request(request(0))
    leader.replacement.poll(1.0)
    leader.connected.add(2)
    leader.replacement.mark_connected(4.0, 2, 1)
    leader.replacement.handle(2, GroupRequests((request(2, is_new=True),)))

    leader.replacement.poll(4.1)

    last = leader.sent[-1]
    assert isinstance(last, GroupDecision)
    assert last.answer.is_formed
    assert last.answer.cause == "node 2 was lost"


def test_successor_proves_the_loss_of_a_silent_node(leader: Wrapper) -> None:
    leader.replacement.mark_connected(1.0, 2, 1)

    assert leader.decisions == [1]


def test_replaced_node_is_not_lost_when_all_ranks_start_again(tmp_path: Path) -> None:
    # All ranks have started again since: the watchdog is new, and the node was replaced before.
    leader = Wrapper(tmp_path)
    leader.run_dir.mark_replaceable()
    leader.run_dir.mark_trained()

    leader.replacement.mark_connected(0.0, 2, 1)

    assert leader.decisions == []


def test_launcher_learns_when_a_lost_node_would_be_awaited(tmp_path: Path) -> None:
    leader = Wrapper(tmp_path)
    announced = leader.run_dir.path / WAITS_FILE
    leader.replacement.mark_connected(0.0, 1, 0)
    early = []
    for prepare in (
        leader.run_dir.mark_replaceable,
        leader.run_dir.mark_trained,
        lambda: leader.replacement.mark_connected(0.5, 2, 0),
    ):
        leader.replacement.poll(0.0)
        early.append(announced.exists())
        prepare()

    leader.replacement.poll(1.0)

    assert early == [False] * 3
    assert announced.exists()


def test_script_that_rules_it_out_is_not_waited_for(tmp_path: Path) -> None:
    leader = Wrapper(tmp_path)
    leader.run_dir.mark_trained()
    for node in (1, 2):
        leader.replacement.mark_connected(0.0, node, 0)
    cause = FailureCause(1, 5, "rank 1 was killed by signal 9")

    assert leader.replacement.begin(1.0, cause, 1) == cause
    leader.replacement.poll(1.0)
    leader.run_dir.mark_replaceable()
    leader.run_dir.clear_group()

    assert leader.decisions == []
    assert not (leader.run_dir.path / WAITS_FILE).exists()
    assert not leader.run_dir.can_replace_ranks()


def test_notice_for_all_nodes_rules_out_a_replacement(leader: Wrapper) -> None:
    leader.run_dir.record_notice(None)
    leader.lose(2, 1.0)
    leader.replacement.handle(1, GroupRequests((request(1),)))

    leader.replacement.poll(1.1)

    assert leader.decisions == []
    cause = leader.election.elect(1.2, 5)
    assert cause
    assert "node 2 " in cause.detail


def test_replacement_gives_up_if_no_other_node_waits(tmp_path: Path) -> None:
    wrapper = Wrapper(tmp_path, node=2, is_new=True)
    loading = wrapper.replacement.poll(1.0), wrapper.replacement.poll(2 * LEADER_TIMEOUT_S)
    GroupFiles(wrapper.run_dir).announce_ready(2)
    ready = wrapper.replacement.poll(200.0), wrapper.replacement.poll(200 + LEADER_TIMEOUT_S)

    cause = wrapper.replacement.poll(201 + LEADER_TIMEOUT_S)

    assert loading == ready == (None, None)
    assert cause
    assert cause.detail == "node 0 does not wait for this node"


def elastic_leader(path: Path) -> Wrapper:
    """The leader of three nodes, of which one is enough, after it has lost node 2."""
    leader = whole_leader(path, min_nodes=1)
    leader.lose(2, 1.0)
    leader.replacement.handle(1, GroupRequests((request(1),)))
    GroupFiles(leader.run_dir).request(request(0))
    leader.replacement.poll(1.0)
    return leader


def connect_host(leader: Wrapper) -> None:
    """Connect the ranks of node 2 on their host, and form the group."""
    leader.connected.add(2)
    leader.replacement.mark_connected(2.0, 2, 1)
    leader.replacement.handle(2, GroupRequests((request(2, is_new=True),)))
    leader.replacement.poll(2.1)


def test_leader_chooses_a_host_for_a_lost_node(tmp_path: Path) -> None:
    leader = elastic_leader(tmp_path)

    connect_host(leader)

    hosting = [each.hosts for each in leader.sent if isinstance(each, HostingDecision)]
    assert {node: host.node for node, host in hosting[-1].items()} == {2: 1}
    assert leader.held[-1] == {2: 1}
    assert isinstance(leader.sent[-1], GroupDecision)
    assert (leader.sent[-1].answer.is_formed, leader.sent[-1].answer.hosted) == (True, (2,))


def test_host_that_failed_is_not_lost_as_well(tmp_path: Path) -> None:
    leader = elastic_leader(tmp_path)
    connect_host(leader)
    no_room = FailureCause(1, 5, "rank 2 on node 2: MemoryError: no room")

    ending = leader.replacement.begin(3.0, no_room, 2)
    leader.replacement.poll(3.1)
    leader.lose(2, 3.2)  # Its wrapper is killed, and that of the next start is slow.
    leader.replacement.poll(3.3)

    [*_, hosting] = [each.hosts for each in leader.sent if isinstance(each, HostingDecision)]
    assert ending is None
    assert hosting[2].start == 2
    assert leader.election.elect(60.0, 5) is None, "no loss ends the attempt"


def test_node_that_is_back_before_its_host_keeps_its_ranks(tmp_path: Path) -> None:
    leader = elastic_leader(
        tmp_path
    )  # Its connection only broke, while another node was suspected.
    leader.connected.add(2)

    leader.replacement.mark_connected(1.5, 2, 0)
    leader.replacement.handle(2, GroupRequests((request(2),)))
    leader.replacement.poll(1.6)

    [*_, hosting] = [each.hosts for each in leader.sent if isinstance(each, HostingDecision)]
    assert hosting == {}
    assert isinstance(leader.sent[-1], GroupDecision)
    assert leader.sent[-1].answer.is_formed


def test_successor_of_a_host_proves_the_loss_of_hosted_ranks(tmp_path: Path) -> None:
    leader = elastic_leader(tmp_path)
    connect_host(leader)  # On node 1, whose connections seem to stand.

    leader.replacement.mark_connected(3.0, 1, STARTS_PER_NODE)
    leader.replacement.handle(2, GroupRequests((request(2, generation=2),)))
    GroupFiles(leader.run_dir).request(request(0, generation=2))
    leader.replacement.handle(1, GroupRequests((request(1, is_new=True, generation=2),)))
    leader.replacement.poll(3.1)

    [*_, hosting] = [each.hosts for each in leader.sent if isinstance(each, HostingDecision)]
    [*_, last] = [each.answer for each in leader.sent if isinstance(each, GroupDecision)]
    assert hosting[2].start == 2
    assert not last.is_formed, "the ranks on the former host are not waited for"


def test_former_host_that_is_late_is_not_the_node(tmp_path: Path) -> None:
    leader = elastic_leader(tmp_path)
    leader.lose(1, 1.5)  # It was chosen to host node 2.
    leader.replacement.poll(1.6)
    leader.connected.add(2)

    leader.replacement.mark_connected(1.7, 2, 1)
    leader.replacement.handle(2, GroupRequests((request(2, is_new=True),)))
    leader.lose(2, 1.8)
    leader.replacement.poll(1.9)

    [*_, hosting] = [each.hosts for each in leader.sent if isinstance(each, HostingDecision)]
    assert (hosting[2].node, hosting[2].start) == (0, 2)
    assert leader.election.elect(60.0, 5) is None, "no loss ends the attempt"


def test_ranks_move_when_all_have_left_their_group(tmp_path: Path) -> None:
    leader = elastic_leader(tmp_path)
    connect_host(leader)

    leader.replacement.mark_ready(2, is_ready=True)
    leader.replacement.poll(3.0)
    is_requested, decisions = leader.run_dir.is_move_requested(), leader.decisions
    moving = GroupRequest(rank=0, generation=2, address="host:0", is_new=False, moves=True)
    GroupFiles(leader.run_dir).request(moving)
    leader.replacement.poll(3.1)

    assert is_requested
    assert leader.decisions == [*decisions, 2]
    assert leader.held[-1] == {}, "the replacement may take over"
    assert not leader.run_dir.is_move_requested()


def test_ranks_on_their_former_host_join_no_group(tmp_path: Path) -> None:
    leader = elastic_leader(tmp_path)
    connect_host(leader)
    leader.replacement.mark_ready(2, is_ready=True)
    moving = [
        GroupRequest(rank=rank, generation=2, address=f"host:{rank}", is_new=False, moves=True)
        for rank in range(NODES)
    ]
    GroupFiles(leader.run_dir).request(moving[0])
    leader.replacement.poll(3.0)

    leader.replacement.handle(1, GroupRequests((moving[1],)))
    leader.replacement.handle(2, GroupRequests((moving[2],)))
    leader.replacement.poll(3.1)

    [*_, last] = [each.answer for each in leader.sent if isinstance(each, GroupDecision)]
    assert not last.is_formed, "the replacement has not asked yet"


def test_replacement_is_ready_before_the_ranks_run_on_their_host(tmp_path: Path) -> None:
    leader = elastic_leader(tmp_path)
    leader.replacement.mark_ready(2, is_ready=True)
    leader.replacement.poll(1.5)
    early = leader.run_dir.is_move_requested()

    connect_host(leader)
    leader.replacement.poll(2.2)

    assert not early
    assert leader.run_dir.is_move_requested()


def test_move_that_is_impossible_ends_nothing(tmp_path: Path) -> None:
    leader = elastic_leader(tmp_path)
    connect_host(leader)
    leader.replacement.mark_ready(2, is_ready=True)
    leader.run_dir.record_notice(None)
    moving = GroupRequest(rank=0, generation=2, address="host:0", is_new=False, moves=True)
    GroupFiles(leader.run_dir).request(moving)

    leader.replacement.poll(3.0)

    assert leader.election.elect(60.0, 5) is None
    assert leader.held[-1] == {2: 1}, "the ranks stay on their host"


def test_no_rank_moves_if_the_replacement_is_lost(tmp_path: Path) -> None:
    leader = elastic_leader(tmp_path)
    connect_host(leader)
    leader.replacement.mark_ready(2, is_ready=True)
    leader.replacement.poll(3.0)

    leader.replacement.mark_ready(2, is_ready=False)
    leader.replacement.poll(3.1)

    assert not leader.run_dir.is_move_requested()
    assert leader.held[-1] == {2: 1}


def test_two_nodes_that_are_lost_together_are_both_replaced(tmp_path: Path) -> None:
    leader = whole_leader(tmp_path, min_nodes=1)
    for node in (1, 2):
        leader.lose(node, 1.0)
    GroupFiles(leader.run_dir).request(request(0))

    leader.replacement.poll(1.0)

    assert leader.election.elect(60.0, 5) is None, "no loss ends the attempt"
    [*_, hosting] = [each.hosts for each in leader.sent if isinstance(each, HostingDecision)]
    assert {node: host.node for node, host in hosting.items()} == {1: 0, 2: 0}


class TestSnapshotsInMemory:
    """Ranks that cannot be replaced while others wait all start again, once there is another node."""

    @pytest.fixture
    def keeper(self, tmp_path: Path) -> Wrapper:
        wrapper = Wrapper(tmp_path)
        wrapper.run_dir.mark_snapshots(are_kept=True)
        wrapper.run_dir.mark_trained()
        for node in (1, 2):
            wrapper.replacement.mark_connected(0.0, node, 0)
        return wrapper

    def test_launcher_learns_that_nodes_are_awaited(self, keeper: Wrapper) -> None:
        announced = keeper.run_dir.path / WAITS_FILE
        keeper.replacement.poll(1.0)
        before = announced.exists()

        keeper.run_dir.mark_snapshots(are_kept=False)
        keeper.replacement.poll(2.0)

        assert (before, announced.exists()) == (True, False)

    def test_lost_node_ends_all_ranks_at_once(self, keeper: Wrapper) -> None:
        keeper.lose(2, 1.0)
        keeper.election.add(1.0, FailureCause(1, 5, "gloo", is_consequence=True))

        keeper.replacement.poll(1.1)

        cause = keeper.election.elect(1.1, 5)
        assert cause == FailureCause(1, 5, "node 2 was lost", is_node_lost=True)
        assert keeper.decisions == []

    def test_successor_proves_the_loss(self, keeper: Wrapper) -> None:
        keeper.replacement.mark_connected(1.0, 2, 1)

        cause = keeper.election.elect(1.0, 5)
        assert cause is not None
        assert cause.is_node_lost

    def test_lost_node_without_snapshots_ends_the_attempt(self, keeper: Wrapper) -> None:
        keeper.run_dir.mark_snapshots(are_kept=False)

        keeper.replacement.mark_connected(1.0, 2, 1)

        cause = keeper.election.elect(60.0, 5)
        assert cause is not None
        assert not cause.is_node_lost


def test_job_that_leaves_its_nodes_waits_for_no_group(tmp_path: Path) -> None:
    leader = whole_leader(tmp_path, is_grouped=True)
    leader.lose(2, 1.0)
    GroupFiles(leader.run_dir).request(request(0))
    waiting = [leader.replacement.poll(now_s) for now_s in (1.0, NODE_TIMEOUT_S * 10)]

    leader.run_dir.record_notice(None)
    cause = leader.replacement.poll(NODE_TIMEOUT_S * 10 + 1)

    assert waiting == [None, None]
    assert cause
    assert cause.to_exit_reason(is_noticed=True).exit_code == Exit.PREEMPTED


def test_replacement_of_a_node_of_a_group_waits_for_its_leader(tmp_path: Path) -> None:
    node = Wrapper(tmp_path, node=2, is_grouped=True)
    node.replacement.start({1: 0, 2: 0}, is_new=True)
    GroupFiles(node.run_dir).announce_ready(2)

    assert node.replacement.poll(0.0) is None
    assert node.replacement.poll(LEADER_TIMEOUT_S * 100) is None
    node.connected.clear()
    assert node.replacement.poll(LEADER_TIMEOUT_S * 100 + 1)
