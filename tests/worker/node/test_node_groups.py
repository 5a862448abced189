"""Nodes in several groups meet through the service, and wait for groups that are lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_worker.protocol.reports import ReportKind
from worker.support.groups_driver import Groups
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import wait_until

STEPS = 24


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


def test_lost_group_costs_no_step(groups: Groups, undisturbed: Nodes) -> None:
    groups.start("--pause", "0.1")
    wait_until(groups.has_trained)

    groups.kill(2)
    groups.start_group(2)
    groups.finish()

    assert_no_step_is_lost(groups, undisturbed, 0, 1)
    [replaced] = groups.reports(ReportKind.RANKS_REPLACED)
    assert (replaced.body["ranks"], replaced.body["cause"]) == ([2], "node 2 was lost")


def test_nodes_wait_for_the_next_leader(groups: Groups, undisturbed: Nodes) -> None:
    groups.start("--pause", "0.1")
    wait_until(lambda: groups.counts(ReportKind.CHECKPOINT_COMMITTED) == [1])

    groups.kill(0)
    groups.start_group(0)
    logs = groups.finish()

    assert logs.count("this node waits for the next node 0") == 2
    assert groups.results == undisturbed.results
    first, second = groups.reports(ReportKind.TRAINING_STARTED)
    assert first.body["step"] == 0
    assert int(str(second.body["step"])) >= 5
    assert not groups.counts(ReportKind.RANKS_RESTARTED)[0]
