"""Ranks, agents and nodes are lost at random, and networks are cut: all steps are those of an undisturbed run to the last bit.

Each schedule is printed if it fails, and is repeated by the name of its test. FAULT_SEEDS selects the number of schedules: a tenth of it
for each test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from fault_injection.lost_nodes import (
    Disturbed,
    Kind,
    Schedule,
    Undisturbed,
    check_successors,
    draw,
)
from support.repetitions import FAULT_SEEDS
from support.requirements import skip_or_fail
from worker.support.node_network import NodeNetwork, NotPossible
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import end_all

pytestmark = pytest.mark.timeout(900)
SEEDS = range(max(1, FAULT_SEEDS // 10 - 1))
MORE_SEEDS = [
    pytest.param(seed, marks=[pytest.mark.full] if seed else [])
    for seed in range(max(4, FAULT_SEEDS // 10))
]
"""Of tests that take longer."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Schedule], Undisturbed]:
    """The undisturbed run of a schedule."""

    @cache
    def run(nodes: int, steps: int, *arguments: str) -> Undisturbed:
        whole = Nodes(tmp_path_factory.mktemp(f"undisturbed-{nodes}"), nodes, steps)
        whole.run(*arguments)
        return Undisturbed(whole.results, [whole.losses(rank) for rank in range(nodes)])

    return lambda schedule: run(schedule.nodes, schedule.steps, *schedule.arguments)


@pytest.fixture(autouse=True)
def processes() -> Iterator[None]:
    """End all processes after each test."""
    yield
    end_all()


@pytest.fixture
def network(processes: None) -> Iterator[NodeNetwork]:
    """A network, without which the test is skipped."""
    try:
        with NodeNetwork.opened() as network:
            yield network
    except NotPossible as reason:
        skip_or_fail(str(reason))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [Kind.REPLICATED, Kind.ELASTIC])
def test_random_losses_change_no_step(
    tmp_path: Path, undisturbed: Callable[[Schedule], Undisturbed], kind: Kind, seed: int
) -> None:
    schedule = draw(seed, kind)
    print(schedule)
    disturbed = Disturbed(tmp_path / "run", schedule)

    disturbed.disturb()

    disturbed.check(undisturbed(schedule))


@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_random_losses_of_sharded_runs_change_no_step(
    tmp_path: Path, undisturbed: Callable[[Schedule], Undisturbed], seed: int
) -> None:
    schedule = draw(seed, Kind.SHARDED)
    print(schedule)
    disturbed = Disturbed(tmp_path / "run", schedule)

    disturbed.disturb()

    disturbed.check(undisturbed(schedule))


@pytest.mark.parametrize("seed", MORE_SEEDS)
@pytest.mark.parametrize("kind", [*Kind])
def test_random_partitions_change_no_step(
    tmp_path: Path,
    undisturbed: Callable[[Schedule], Undisturbed],
    network: NodeNetwork,
    kind: Kind,
    seed: int,
) -> None:
    schedule = draw(seed, kind, cuts=True)
    print(schedule)
    disturbed = Disturbed(tmp_path / "run", schedule, network)

    disturbed.disturb()

    disturbed.check(undisturbed(schedule))


@pytest.mark.parametrize("makers", ["", "aaab", "aabab", "ababb", "aabcbac"])
def test_one_late_step_of_a_replaced_process_is_allowed(makers: str) -> None:
    check_successors(makers, late=1)


@pytest.mark.parametrize("makers", ["aabaab", "ababa", "abcaca"])
def test_further_steps_of_a_replaced_process_are_found(makers: str) -> None:
    with pytest.raises(AssertionError, match="two groups train"):
        check_successors(makers, late=1)
