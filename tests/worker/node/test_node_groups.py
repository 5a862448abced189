"""Nodes in several groups meet through the service, and wait for groups that are lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from worker.support.groups_driver import Groups
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import TIMEOUT_S, read_until, wait_until

STEPS = 24
HELD = 16
"""Ranks stay in this step until the test releases them, so that the run does not end before."""
SLOW = ("--pause", "0.1", "--hold", str(HELD))
DRILLED = ("--pause", "0.5", "--hold", "20")
"""With steps to report until a drill has ended nodes: the service requests it in its reply to reports."""
LINGERS = "for the termination of the node"  # Logged by a wrapper that has exited.
SETTLED_S = 4.0
"""Time in which nodes would notice what they must not act on."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    """The same run on three nodes of one placement."""
    nodes = Nodes(tmp_path_factory.mktemp("undisturbed"), steps=STEPS)
    nodes.run()
    return nodes


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """A run on three groups of one node."""
    groups = Groups(tmp_path, steps=STEPS)
    with groups.opened():
        yield groups


def assert_no_step_is_lost(groups: Groups, undisturbed: Nodes, *survivors: int) -> None:
    assert groups.results == undisturbed.results
    for rank in survivors:
        assert groups.losses(rank) == undisturbed.losses(rank)
    assert groups.counts(ReportKind.TRAINING_STARTED, ReportKind.RANKS_RESTARTED) == [1, 0]


def replaced_ranks(groups: Groups) -> list[object]:
    return [report.body["ranks"] for report in groups.reports(ReportKind.RANKS_REPLACED)]


def started_steps(groups: Groups) -> list[int]:
    """The step at which each start of all ranks began."""
    return [int(str(r.body["step"])) for r in groups.reports(ReportKind.TRAINING_STARTED)]


def has_saved(groups: Groups) -> bool:
    return groups.counts(ReportKind.CHECKPOINT_COMMITTED) >= [1]


def test_lost_group_costs_no_step(groups: Groups, undisturbed: Nodes) -> None:
    groups.start(*SLOW)
    wait_until(groups.has_trained)

    groups.kill(2)
    groups.start_group(2)
    groups.finish()

    assert_no_step_is_lost(groups, undisturbed, 0, 1)
    [replaced] = groups.reports(ReportKind.RANKS_REPLACED)
    assert (replaced.body["ranks"], replaced.body["cause"]) == ([2], "node 2 was lost")


@pytest.mark.full
def test_all_nodes_of_a_group_are_lost_at_once(tmp_path: Path, undisturbed: Nodes) -> None:
    groups = Groups(tmp_path, sizes=(1, 2), steps=STEPS)
    with groups.opened():
        groups.start(*SLOW)
        wait_until(groups.has_trained)

        groups.kill(1)
        groups.start_group(1)
        groups.finish()

    assert_no_step_is_lost(groups, undisturbed, 0)
    assert replaced_ranks(groups) == [[1, 2]]


def test_nodes_wait_for_the_next_leader(groups: Groups, undisturbed: Nodes) -> None:
    groups.start(*SLOW)
    wait_until(lambda: has_saved(groups))

    groups.kill(0)
    newest = groups.newest_step
    groups.start_group(0)
    logs = groups.finish()

    assert logs.count("this node waits for the next node 0") >= 2
    assert groups.results == undisturbed.results
    assert started_steps(groups) == [0, newest]
    assert groups.counts(ReportKind.RANKS_RESTARTED) == [0]


@pytest.mark.full
@pytest.mark.parametrize("is_noticed", [True, False])
def test_group_of_the_leader_has_two_nodes(
    tmp_path: Path, undisturbed: Nodes, is_noticed: bool
) -> None:
    groups = Groups(tmp_path, sizes=(2, 1), steps=STEPS)
    with groups.opened():
        groups.start(*SLOW)
        wait_until(lambda: has_saved(groups))
        if is_noticed:
            assert groups.preempt_leader(HELD) == [Exit.PREEMPTED] * 2
        else:
            groups.kill(0)
        groups.start_group(0)
        logs = groups.finish()

    assert logs.count("this node waits for the next node 0") >= 1
    assert groups.results == undisturbed.results
    assert len(started_steps(groups)) == 2


@pytest.mark.full
def test_wait_for_a_group_is_no_stall(tmp_path: Path, undisturbed: Nodes) -> None:
    groups = Groups(tmp_path, steps=STEPS, HOLDFAST_MAX_STALL="6s")
    with groups.opened():
        groups.start_group(0)
        groups.start_group(1, *SLOW)
        time.sleep(9)
        groups.start_group(2)
        wait_until(groups.has_trained)
        groups.kill(2)
        groups.release()
        time.sleep(9)
        groups.start_group(2)
        logs = groups.finish()

    assert "made a step" not in logs
    assert_no_step_is_lost(groups, undisturbed, 0, 1)


@pytest.mark.full
def test_leader_is_lost_twice_and_another_group_with_it(groups: Groups, undisturbed: Nodes) -> None:
    groups.start(*SLOW)
    wait_until(lambda: has_saved(groups))

    groups.kill(0)
    groups.kill(1)
    groups.start_group(0)
    time.sleep(1)
    groups.kill(0)
    groups.start_group(1)
    groups.start_group(0)
    groups.finish()

    assert groups.results == undisturbed.results
    assert len(started_steps(groups)) == 2


def test_group_is_lost_while_its_ranks_start(groups: Groups, undisturbed: Nodes) -> None:
    groups.start("--hold", "-1")
    wait_until(lambda: bool(groups.run_dir(2).registered_pids()))

    groups.kill(2)
    groups.start_group(2)
    groups.finish()

    assert groups.results == undisturbed.results
    [restart] = groups.reports(ReportKind.RANKS_RESTARTED)
    assert (restart.body["step"], restart.body["node_lost"]) == (0, True)
    assert "node 2" in str(restart.body["detail"])


@pytest.mark.full
def test_group_is_lost_before_all_are_there(groups: Groups, undisturbed: Nodes) -> None:
    for group in (1, 2):
        groups.start_group(group)
    wait_until(lambda: len(groups.service.arrived) == 2)
    groups.kill(2)
    groups.start_group(0)
    time.sleep(SETTLED_S)
    trained = groups.has_trained(0)

    groups.start_group(2)
    groups.finish()

    assert not trained
    assert groups.results == undisturbed.results
    assert groups.counts(ReportKind.TRAINING_STARTED, ReportKind.RANKS_RESTARTED) == [1, 0]


@pytest.mark.full
@pytest.mark.parametrize("lost", [0, 2])
def test_service_is_away_when_a_group_is_lost(
    tmp_path: Path, undisturbed: Nodes, lost: int
) -> None:
    groups = Groups(tmp_path, steps=STEPS)
    standing = {0, 1, 2} - {lost}
    with groups.opened():
        groups.start(*SLOW)
        wait_until(groups.has_trained)
        wait_until(lambda: has_saved(groups))

    groups.kill(lost)
    groups.release()
    groups.start_group(lost)
    time.sleep(2 * SETTLED_S)
    assert groups.is_running(*standing)
    with groups.opened():
        groups.finish()

    assert groups.results == undisturbed.results
    assert len(started_steps(groups)) == (2 if lost == 0 else 1)


def test_frozen_node_takes_no_part_when_it_returns(groups: Groups, undisturbed: Nodes) -> None:
    groups.start(*SLOW, "--hold", "8")
    wait_until(groups.has_trained)
    [frozen] = groups.wrappers[2]
    Nodes.signal_processes(frozen, signal.SIGSTOP)
    groups.release(8)

    groups.start_group(2)
    wait_until(lambda: bool(replaced_ranks(groups)))
    Nodes.signal_processes(frozen, signal.SIGCONT)
    log = read_until(frozen, LINGERS)
    groups.finish()
    frozen.send_signal(signal.SIGTERM)
    frozen.communicate(timeout=TIMEOUT_S)

    assert frozen.returncode == Exit.FENCED, log
    assert_no_step_is_lost(groups, undisturbed, 0, 1)


@pytest.mark.full
@pytest.mark.parametrize("arguments", [("--shard",), ("--untracked",)])
def test_script_that_cannot_replace_ranks_starts_again(
    groups: Groups, arguments: tuple[str, ...]
) -> None:
    groups.start(*SLOW, *arguments)
    wait_until(groups.has_trained)
    wait_until(lambda: has_saved(groups) or "--untracked" in arguments)

    for _ in range(2):  # It is no failure of the program, which could be repeated once.
        before = len(started_steps(groups))
        groups.kill(2)
        groups.start_group(2)
        wait_until(lambda: len(started_steps(groups)) > before)  # noqa: B023
        wait_until(lambda: groups.has_trained(2))
    groups.finish()

    restarts = groups.reports(ReportKind.RANKS_RESTARTED)
    assert all(report.body["node_lost"] for report in restarts)
    assert groups.counts(ReportKind.RANKS_REPLACED) == [0]


@pytest.mark.full
def test_restart_of_all_ranks_as_the_job_asks_for_it(tmp_path: Path, undisturbed: Nodes) -> None:
    groups = Groups(tmp_path, steps=STEPS, HOLDFAST_RECOVERY="restart")
    with groups.opened():
        groups.start(*SLOW)
        wait_until(groups.has_trained)
        groups.kill(2)
        groups.start_group(2)
        groups.finish()

    assert groups.results == undisturbed.results
    assert groups.counts(ReportKind.RANKS_REPLACED) == [0]


@pytest.mark.full
def test_groups_run_one_program_after_another(tmp_path: Path) -> None:
    groups = Groups(tmp_path, sizes=(1, 1), steps=6)
    with groups.opened():
        groups.start("--late", "0")
        for group in (1, 0):
            assert groups.wrappers[group][0].wait(TIMEOUT_S) == Exit.DONE
            groups.start_next_command(group, 12)
        groups.finish()

    assert started_steps(groups) == [0, 6]
    assert [len(groups.losses(rank)) for rank in range(2)] == [12, 12]
    assert groups.counts(ReportKind.RANKS_REPLACED, ReportKind.RANKS_RESTARTED) == [0, 0]


@pytest.mark.full
def test_failed_script_ends_all_groups(groups: Groups) -> None:
    groups.start("--error", "1:8")
    logs = [groups.wrappers[group][0].communicate(timeout=TIMEOUT_S)[1] for group in range(3)]

    assert {groups.wrappers[group][0].returncode for group in range(3)} == {Exit.FAILED}, logs
    [left] = groups.reports(ReportKind.WORKER_LEFT)
    assert "ValueError: an error" in str(left.body["detail"])


@pytest.mark.full
def test_ranks_of_a_lost_group_run_on_another_until_it_is_back(tmp_path: Path) -> None:
    undisturbed = Nodes(tmp_path / "undisturbed", steps=60)
    (tmp_path / "undisturbed").mkdir()
    undisturbed.run()
    groups = Groups(tmp_path, steps=60, HOLDFAST_MIN_NODES="2")
    with groups.opened():
        groups.start("--pause", "0.2", "--hold", "40")
        wait_until(groups.has_trained)
        groups.kill(2)
        wait_until(lambda: bool(replaced_ranks(groups)))
        groups.start_group(2)
        # Its ranks move at the end of a step.
        wait_until(lambda: groups.run_dir(0).is_move_requested() or len(replaced_ranks(groups)) > 1)
        logs = groups.finish()

    assert "runs the ranks of node 2 until it is replaced" in logs
    assert "node 2 is replaced: its ranks move there" in logs
    assert_no_step_is_lost(groups, undisturbed, 0, 1)
    hosted = [r.body.get("hosted_nodes") for r in groups.reports(ReportKind.RANKS_REPLACED)]
    assert hosted == [[2], None]


@pytest.mark.full
def test_leader_is_lost_while_a_node_is_hosted(tmp_path: Path, undisturbed: Nodes) -> None:
    groups = Groups(tmp_path, steps=STEPS, HOLDFAST_MIN_NODES="2")
    with groups.opened():
        groups.start(*SLOW)
        wait_until(lambda: has_saved(groups))
        groups.kill(2)
        wait_until(lambda: bool(replaced_ranks(groups)))
        groups.kill(0)
        groups.start_group(0)
        groups.start_group(2)
        groups.finish()

    assert groups.results == undisturbed.results
    assert len(started_steps(groups)) == 2


def test_preempted_leader_saves_and_the_others_wait(groups: Groups, undisturbed: Nodes) -> None:
    groups.start(*SLOW)
    wait_until(groups.has_trained)

    codes = groups.preempt_leader(HELD)
    [left] = groups.reports(ReportKind.WORKER_LEFT)
    groups.start_group(0)
    logs = groups.finish()

    assert codes == [Exit.PREEMPTED]
    assert left.body["reason"] == "preempted"
    assert logs.count("this node waits for the next node 0") >= 2
    assert started_steps(groups) == [0, left.body["step"]]
    assert groups.results == undisturbed.results
    assert groups.losses(1) == undisturbed.losses(1)


@pytest.mark.full
def test_notice_of_another_group_is_a_reason_to_save(groups: Groups, undisturbed: Nodes) -> None:
    groups.start(*SLOW)
    wait_until(groups.has_trained)

    groups.wrappers[2][0].send_signal(signal.SIGTERM)
    wait_until(groups.run_dir(2).is_hinted)
    wait_until(lambda: has_saved(groups))
    groups.kill(2)
    groups.start_group(2)
    groups.finish()

    assert_no_step_is_lost(groups, undisturbed, 0, 1)


def test_drill_ends_a_group_as_a_loss_does(groups: Groups, undisturbed: Nodes) -> None:
    groups.start(*DRILLED)
    wait_until(groups.replaces)

    groups.drill(2)
    groups.start_group(2)
    groups.finish()  # The service repeats the request, which concerns no other node.

    assert_no_step_is_lost(groups, undisturbed, 0, 1)
    [replaced] = groups.reports(ReportKind.RANKS_REPLACED)
    assert (replaced.body["ranks"], replaced.body["cause"]) == ([2], "node 2 was lost")
    [started] = groups.reports(ReportKind.TRAINING_STARTED)
    assert started.body["keeps_state"] is True


def test_drill_with_notice_lets_all_ranks_save(groups: Groups, undisturbed: Nodes) -> None:
    groups.start(*DRILLED)
    wait_until(groups.replaces)

    groups.drill(2, within_s=5)
    is_hinted = groups.run_dir(2).is_hinted()
    groups.start_group(2)
    groups.finish()

    assert is_hinted
    assert_no_step_is_lost(groups, undisturbed, 0, 1)


@pytest.mark.full
@pytest.mark.parametrize("within_s", [0, 8])
def test_drill_of_the_group_of_the_leader(
    tmp_path: Path, undisturbed: Nodes, within_s: float
) -> None:
    groups = Groups(tmp_path, sizes=(2, 1), steps=STEPS)
    with groups.opened():
        groups.start(*DRILLED)
        wait_until(lambda: has_saved(groups))

        groups.drill(0, within_s)
        groups.service.drills.clear()  # The service does not repeat it to the next attempt.
        groups.start_group(0)
        logs = groups.finish()

    assert "this node waits for the next node 0" in logs
    assert groups.results == undisturbed.results
    lefts = [r.body["reason"] for r in groups.reports(ReportKind.WORKER_LEFT)]
    assert lefts == (["preempted", "finished"] if within_s else ["finished"])


@pytest.mark.full
def test_two_groups_are_drilled_one_after_the_other(groups: Groups, undisturbed: Nodes) -> None:
    groups.start(*DRILLED)
    wait_until(groups.replaces)

    groups.drill(2)
    groups.start_group(2)
    wait_until(lambda: len(replaced_ranks(groups)) == 1)
    groups.drill(1)
    groups.start_group(1)
    groups.finish()

    assert replaced_ranks(groups) == [[2], [1]]
    assert_no_step_is_lost(groups, undisturbed, 0)
    # Rank 2 may end before it logs the step that all have completed.
    missing = {*undisturbed.losses(2)} - {*groups.losses(2)}
    assert (len(missing) < 2, len(groups.losses(2)) + len(missing)) == (True, STEPS)


@pytest.mark.full
def test_drill_while_another_group_is_missing(groups: Groups, undisturbed: Nodes) -> None:
    groups.start("--shard", *DRILLED)
    wait_until(groups.has_trained)
    wait_until(lambda: has_saved(groups))
    groups.kill(2)
    wait_until(lambda: not groups.run_dir(1).registered_pids())

    groups.drill(1)
    groups.start_group(1)
    groups.start_group(2)
    groups.finish()

    assert groups.counts(ReportKind.WORKER_LEFT)[0] == 1


def test_paused_job_leaves_nodes_that_wait_for_a_group(groups: Groups) -> None:
    groups.start(*SLOW)
    wait_until(groups.has_trained)
    groups.kill(2)
    groups.release()
    wait_until((groups.run_dir(1).path / "ranks/group.json").exists)

    # The keepalive of node 0 is slow; SkyPilot signals node 0 as well.
    groups.service.leave_within_s = 60.0
    groups.wrappers[0][0].send_signal(signal.SIGTERM)
    groups.wrappers[0][0].wait(TIMEOUT_S)
    groups.service.replaced = {"*"}
    wait_until(lambda: not [*groups.run_dir(1).registered_pids()])
    codes, logs = groups.leave(1)

    assert groups.wrappers[0][0].returncode == Exit.PREEMPTED
    assert codes == [Exit.PREEMPTED]
    assert "the job has to leave its nodes while others are missing" in logs
    [left] = groups.reports(ReportKind.WORKER_LEFT)
    assert left.body["reason"] == "preempted"


def test_cancelled_nodes_that_wait_for_others_exit(groups: Groups) -> None:
    for group in (0, 1):
        groups.start_group(group)
    wait_until(lambda: len(groups.service.arrived) == 2)
    time.sleep(1)

    codes, _ = groups.leave(0, 1)

    assert codes == [Exit.PREEMPTED, Exit.PREEMPTED]


def test_node_that_comes_after_the_end_exits(groups: Groups) -> None:
    groups.start()
    groups.finish()
    groups.service.replaced = {"*"}

    groups.start_group(2)
    log = read_until(groups.wrappers[2][0], LINGERS)
    codes, _ = groups.leave(2)

    assert codes == [Exit.FENCED], log
    assert "this node is not needed any more" in log
