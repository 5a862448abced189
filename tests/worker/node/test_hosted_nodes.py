"""With an elastic number of nodes, the ranks of a missing one run on another: no step is lost, and no bit differs."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from holdfast_worker.node.rank_variables import hosted_node_variables
from holdfast_worker.protocol.reports import ReportKind
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import wait_until

STEPS = 60
HELD = 40
"""Ranks stay in this step until the test releases them, so that the run does not end before."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    nodes = Nodes(tmp_path_factory.mktemp("undisturbed"), steps=STEPS)
    nodes.run()
    return nodes


def elastic(path: Path, *arguments: str, least: int = 1) -> Nodes:
    """A run in training that continues with fewer nodes, up to the held step."""
    nodes = Nodes(path, 3, STEPS, HOLDFAST_NODE_START="0", HOLDFAST_MIN_NODES=str(least))
    nodes.start("--pause", "0.2", "--hold", str(HELD), *arguments)
    wait_until(lambda: nodes.would_wait)
    return nodes


def hosted(nodes: Nodes) -> list[object]:
    """The hosted nodes in each report of a recovery."""
    reports = nodes.driver.reports(ReportKind.RANKS_REPLACED)
    return [report.body.get("hosted_nodes") for report in reports]


def wait_for_move(nodes: Nodes) -> None:
    """Wait until ranks have moved to a replacement.

    They move after the next step in which nothing is being saved, so that steps keep their pauses until then.
    """
    wait_until(lambda: nodes.run_dir(0).is_move_requested() or hosted(nodes)[-1] is None)
    nodes.release(HELD)
    wait_until(lambda: hosted(nodes)[-1] is None)


def assert_equal(nodes: Nodes, undisturbed: Nodes) -> None:
    assert nodes.results == undisturbed.results
    assert nodes.losses(0) == undisturbed.losses(0)
    assert nodes.counts(ReportKind.TRAINING_STARTED, ReportKind.RANKS_RESTARTED) == [1, 0]


@pytest.mark.parametrize(("given", "machine"), [("", socket.gethostname()), ("rack-7", "rack-7")])
def test_hosted_ranks_are_on_another_machine_for_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, machine: str
) -> None:
    monkeypatch.setenv("NCCL_HOSTID", given)

    variables = hosted_node_variables(tmp_path, 2, 1001, None)

    assert variables["NCCL_HOSTID"] == f"{machine}-2-1001"


@pytest.mark.full
def test_ranks_of_lost_node_run_on_another(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = elastic(tmp_path)

    nodes.kill(2)
    logs = nodes.finish_without(2)

    assert "node 1 runs the ranks of node 2 until it is replaced" in logs
    assert_equal(nodes, undisturbed)
    assert hosted(nodes) == [[2]]


def test_ranks_move_to_the_replacement(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = elastic(tmp_path)
    nodes.kill(2)
    wait_until(lambda: hosted(nodes) == [[2]])

    nodes.replace(2)
    wait_for_move(nodes)
    logs = nodes.finish()

    assert "node 2 is replaced: its ranks move there" in logs
    assert_equal(nodes, undisturbed)
    assert hosted(nodes) == [[2], None]


@pytest.mark.full
def test_host_is_lost_as_well(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = elastic(tmp_path)
    nodes.kill(2)
    wait_until(lambda: hosted(nodes) == [[2]])

    nodes.kill(1)
    nodes.finish_without(1, 2)

    assert_equal(nodes, undisturbed)
    assert hosted(nodes) == [[2], [1, 2]]


@pytest.mark.full
def test_too_few_nodes_wait_for_a_replacement(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = elastic(tmp_path, least=2)
    nodes.kill(2)
    wait_until(lambda: hosted(nodes) == [[2]])

    nodes.kill(1)
    time.sleep(4)
    waiting = hosted(nodes)
    nodes.replace(1)
    nodes.finish_without(2)

    assert waiting == [[2]]
    assert_equal(nodes, undisturbed)
    assert hosted(nodes)[-1] == [2]


def test_host_without_room_waits_for_a_replacement(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = elastic(tmp_path, "--no-room")
    nodes.kill(2)
    log = nodes.run_dir(1).hosted_log_file(2)
    # The second time, the interpreter may have to start first.
    wait_until(lambda: log.exists() and log.read_text().count("MemoryError: no room") == 2)
    time.sleep(4)

    nodes.replace(2)
    logs = nodes.finish()

    assert logs.count("node 1 cannot run the ranks of node 2") == 2
    assert_equal(nodes, undisturbed)
    assert hosted(nodes)[-1] is None


@pytest.mark.full
def test_replacement_is_lost_before_it_takes_over(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = elastic(tmp_path)
    nodes.kill(2)
    wait_until(lambda: hosted(nodes) == [[2]])

    for moment_s in (0.3, 1.5):
        nodes.replace(2)
        time.sleep(moment_s)
        nodes.kill(2)
    nodes.replace(2)
    wait_for_move(nodes)
    nodes.finish()

    assert_equal(nodes, undisturbed)
    assert hosted(nodes)[-1] is None


@pytest.mark.full
def test_replacement_that_comes_too_late_ends_with_the_run(
    tmp_path: Path, undisturbed: Nodes
) -> None:
    nodes = elastic(tmp_path)
    nodes.kill(2)
    wait_until(lambda: nodes.counts(ReportKind.RANKS_REPLACED) == [1])

    # Its ranks wait for longer than the run takes.
    nodes.replace(2, "--wait", "600")
    logs = nodes.finish()

    assert "the run has ended without this node" in logs
    assert_equal(nodes, undisturbed)
