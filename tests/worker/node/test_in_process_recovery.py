"""Ranks of other nodes keep their state while lost ones are replaced, and no step is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import JOINED_FILE, Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.watchdog.group_files import GroupFiles
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import TIMEOUT_S, wait_until

FALL_AT = 13
NODES = 3
HELD = ("--hold", "8")
"""Ranks stay in this step until the test releases them, so that the run does not end before."""
SETTLED_S = 1.0
"""Time in which ranks would meet that do not wait for each other."""
KILLED = "rank {0} on node {0} was killed by signal 9"


def fall(rank: int, moment: str) -> tuple[str, ...]:
    """Arguments for a script of which one rank falls, once all wrappers know of each other."""
    return "--connected", "--fall", f"{rank}:{FALL_AT}:{moment}"


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    nodes = Nodes(tmp_path_factory.mktemp("undisturbed"))
    nodes.run()
    return nodes


@pytest.mark.parametrize(
    ("rank", "moment"),
    [
        (0, "backward"),
        *(
            pytest.param(rank, moment, marks=pytest.mark.full)
            for rank, moment in (
                (0, "forward"),
                (1, "forward"),
                (1, "backward"),
                (1, "end"),
                (1, "step"),
                (0, "step"),
                (0, "end"),
            )
        ),
    ],
)
def test_lost_rank_costs_no_step(nodes: Nodes, undisturbed: Nodes, rank: int, moment: str) -> None:
    nodes.run(*fall(rank, moment))

    assert nodes.results == undisturbed.results
    for other in {*range(NODES)} - {rank}:
        assert nodes.losses(other) == undisturbed.losses(other)
    if moment in {"forward", "backward"}:
        # The losses depend on the generators that the rank has alone, through dropout and noise in the data.
        expected = undisturbed.losses(rank)
        if moment == "backward":
            del expected[FALL_AT]  # The rank falls before it writes this one.
        assert nodes.losses(rank) == expected
    assert nodes.counts(ReportKind.TRAINING_STARTED, ReportKind.RANKS_RESTARTED) == [1, 0]
    [replaced] = nodes.driver.reports(ReportKind.RANKS_REPLACED)
    assert (replaced.body["ranks"], replaced.body["cause"]) == ([rank], KILLED.format(rank))
    assert replaced.body["step"] in {FALL_AT, FALL_AT + 1}


@pytest.mark.parametrize("held", [HELD, ("--hold-update", "8")])
def test_ranks_that_have_stepped_end_their_step_first(
    nodes: Nodes, undisturbed: Nodes, held: tuple[str, str]
) -> None:
    nodes.start(*held, "--connected")
    wait_until(lambda: nodes.is_held(8) and (nodes.run_dir(0).path / "connected").exists())
    os.kill(nodes.run_dir(1).registered_pids()[1], signal.SIGKILL)
    files = GroupFiles(nodes.run_dir(1))
    wait_until(lambda: any(each.is_new and each.address for each in files.requests()))
    time.sleep(SETTLED_S)
    before = nodes.counts(ReportKind.RANKS_REPLACED)

    nodes.finish()

    assert before == [0]
    assert nodes.results == undisturbed.results
    for rank in (0, 2):
        assert nodes.losses(rank) == undisturbed.losses(rank)
    assert nodes.counts(ReportKind.TRAINING_STARTED, ReportKind.RANKS_RESTARTED) == [1, 0]
    [replaced] = nodes.driver.reports(ReportKind.RANKS_REPLACED)
    assert (replaced.body["ranks"], replaced.body["step"]) == ([1], 9)


@pytest.mark.full
def test_optimizer_that_has_stepped_leads_to_a_restart(nodes: Nodes) -> None:
    nodes.run(*fall(1, "between"), "--two-optimizers")

    logs = [nodes.run_dir(rank).log_file(rank).read_text() for rank in range(NODES)]
    assert "an optimizer had stepped within the step" in "".join(logs)
    assert nodes.counts(ReportKind.RANKS_REPLACED, ReportKind.RANKS_RESTARTED) == [0, 1]
    [restart] = nodes.driver.reports(ReportKind.RANKS_RESTARTED)
    assert restart.body["detail"] == KILLED.format(1)


def test_error_of_the_script_ends_in_a_restart_and_a_failure(nodes: Nodes) -> None:
    nodes.start("--connected", "--error", f"1:{FALL_AT}")
    logs = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in nodes.wrappers]

    assert {wrapper.returncode for wrapper in nodes.wrappers} == {Exit.FAILED}, logs
    assert nodes.counts(ReportKind.RANKS_RESTARTED, ReportKind.WORKER_LEFT) == [1, 1]
    [left] = nodes.driver.reports(ReportKind.WORKER_LEFT)
    assert "ValueError: an error" in str(left.body["detail"])


def test_all_ranks_restart_if_the_job_asks_for_it(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = Nodes(tmp_path, HOLDFAST_RECOVERY="restart")

    nodes.run(*fall(1, "forward"))

    assert nodes.results == undisturbed.results
    assert nodes.counts(ReportKind.RANKS_REPLACED, ReportKind.RANKS_RESTARTED) == [0, 1]


def test_lost_node_ends_the_attempt_at_once(nodes: Nodes) -> None:
    nodes.start(*HELD)
    wait_until(lambda: all(nodes.run_dir(node).has_trained() for node in range(NODES)))
    wait_until((nodes.run_dir(0).path / "connected").exists)

    nodes.wrappers[2].send_signal(signal.SIGKILL)
    nodes.wrappers[2].wait()
    nodes.release()
    logs = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in nodes.wrappers[:2]]

    assert all("node 2 is lost: its connection broke" in log for log in logs), logs
    assert nodes.counts(ReportKind.RANKS_REPLACED) == [0]


@pytest.mark.full
def test_replaced_node_costs_no_step(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = Nodes(tmp_path, HOLDFAST_NODE_START="0")
    nodes.start(*HELD)
    wait_until(lambda: all(nodes.run_dir(node).has_trained() for node in range(NODES)))
    wait_until(lambda: nodes.would_wait)

    nodes.kill(2)
    nodes.replace(2)
    nodes.finish()

    assert (nodes.run_dir(2).path / JOINED_FILE).exists()
    assert nodes.results == undisturbed.results
    for rank in range(2):
        assert nodes.losses(rank) == undisturbed.losses(rank)
    assert nodes.counts(ReportKind.TRAINING_STARTED, ReportKind.RANKS_RESTARTED) == [1, 0]
    [replaced] = nodes.driver.reports(ReportKind.RANKS_REPLACED)
    assert (replaced.body["ranks"], replaced.body["cause"]) == ([2], "node 2 was lost")


def test_node_that_was_replaced_takes_no_part_when_it_returns(
    tmp_path: Path, undisturbed: Nodes
) -> None:
    nodes = Nodes(tmp_path, HOLDFAST_NODE_START="0")
    nodes.start(*HELD, "--hold", "16")
    wait_until(lambda: nodes.would_wait)
    wait_until(nodes.run_dir(2).has_trained)
    # As if its network was down: its connections stand, and nothing comes.
    frozen = nodes.wrappers[2]
    nodes.signal_processes(frozen, signal.SIGSTOP)
    nodes.release(8)

    nodes.replace(2)
    wait_until(lambda: nodes.counts(ReportKind.RANKS_REPLACED) == [1])
    nodes.signal_processes(frozen, signal.SIGCONT)
    has_returned = frozen.wait(TIMEOUT_S)
    nodes.finish()

    assert has_returned != Exit.DONE
    assert nodes.results == undisturbed.results
    assert nodes.losses(0) == undisturbed.losses(0)
    assert nodes.counts(ReportKind.RANKS_REPLACED, ReportKind.RANKS_RESTARTED) == [1, 0]


@pytest.mark.full
def test_script_without_tracked_objects_starts_again(nodes: Nodes) -> None:
    nodes.run(*fall(1, "forward"), "--untracked")

    assert nodes.counts(ReportKind.RANKS_REPLACED, ReportKind.RANKS_RESTARTED) == [0, 1]


def test_sharded_model_starts_again_from_its_checkpoint(nodes: Nodes) -> None:
    log = nodes.run(*fall(1, "forward"), "--shard")

    assert "while others wait" not in log
    assert nodes.counts(ReportKind.RANKS_REPLACED, ReportKind.RANKS_RESTARTED) == [0, 1]
