"""With an elastic number of nodes, the ranks of a missing one run on another: no step is lost, and no bit differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_worker.protocol.reports import ReportKind
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import wait_until

STEPS = 60


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    nodes = Nodes(tmp_path_factory.mktemp("undisturbed"), steps=STEPS)
    nodes.run()
    return nodes


def elastic(path: Path, least: int = 1) -> Nodes:
    """A run in training that continues with fewer nodes."""
    nodes = Nodes(path, 3, STEPS, HOLDFAST_NODE_START="0", HOLDFAST_MIN_NODES=str(least))
    nodes.start("--pause", "0.2")
    wait_until(lambda: nodes.would_wait)
    return nodes


def hosted(nodes: Nodes) -> list[object]:
    """The hosted nodes in each report of a recovery."""
    reports = nodes.driver.reports(ReportKind.RANKS_REPLACED)
    return [report.body.get("hosted_nodes") for report in reports]


def assert_equal(nodes: Nodes, undisturbed: Nodes) -> None:
    assert nodes.results == undisturbed.results
    assert nodes.losses(0) == undisturbed.losses(0)
    assert nodes.counts(ReportKind.TRAINING_STARTED, ReportKind.RANKS_RESTARTED) == [1, 0]


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
    logs = nodes.finish()

    assert "node 2 is replaced: its ranks move there" in logs
    assert_equal(nodes, undisturbed)
    assert hosted(nodes) == [[2], None]
