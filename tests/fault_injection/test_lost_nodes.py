"""Ranks, agents and nodes are lost at random: the weights are those of an undisturbed run to the last bit.

The test is the launcher: it replaces a lost node if the others would wait for it, and otherwise starts the next attempt.
FAULT_SEEDS selects the number of schedules.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

import psutil
import pytest
from holdfast_worker.protocol.environment import Exit
from support.repetitions import FAULT_SEEDS
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import end_all

SIZES = (2, 3, 4)
STEPS = 40
PAUSE_S = 0.05
MOST_ATTEMPTS = 8
TIMEOUT_S = 150.0


class Fault(StrEnum):
    """What happens to a node."""

    RANK_KILLED = "rank killed"
    AGENT_KILLED = "agent killed"
    WRAPPER_KILLED = "wrapper killed"
    """Its ranks end with it. The node stands, and its program is started again."""
    NODE_LOST = "node lost"
    TWO_NODES_LOST = "two nodes lost"
    NODE_LOST_AFTER_NOTICE = "node lost after notice"
    """Its program gets SIGTERM, as from a provider that announces the loss."""
    REPLACEMENT_LOST = "replacement lost"
    """A node is lost, and soon after that the one in its place: before it joins, while it receives the state, or later."""
    NODE_FROZEN = "node frozen"
    """Its processes stop for a moment, as behind a broken network."""
    NODE_REPLACED_WHILE_FROZEN = "node replaced while frozen"
    """The launcher takes it for lost, and it returns later."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault, and when it happens."""

    fault: Fault
    node: int
    pause_s: float
    """Time after the last fault or the first step. Short ones hit the recovery from the last fault."""


def draw(seed: int) -> tuple[int, list[PlannedFault]]:
    """Draw a number of nodes and a schedule."""
    chance = random.Random(seed)
    nodes = chance.choice(SIZES)
    faults = [
        PlannedFault(
            chance.choice([*Fault]),
            chance.randrange(nodes),
            chance.choice([0.0, 0.05, 0.2, 0.5, 1.0]) + chance.uniform(0, 0.3),
        )
        for _ in range(chance.randint(1, 4))
    ]
    return nodes, faults


class Disturbed:
    """A run, its faults, and a launcher."""

    def __init__(self, path: Path, nodes: int) -> None:
        path.mkdir()
        self.run = Nodes(path, nodes, STEPS, HOLDFAST_NODE_START="0")
        self._passed = threading.Event()

    def pause(self, seconds: float) -> None:
        """Let the run go on."""
        self._passed.wait(seconds)

    def start(self) -> None:
        """Start the next attempt."""
        assert self.run.attempt < MOST_ATTEMPTS, "the run does not come to its end"
        self.run.start("--pause", str(PAUSE_S))

    def lose(self, nodes: list[int]) -> None:
        """Lose nodes, and replace them if the others wait."""
        for node in nodes:
            self.run.kill(node)
        if self.run.would_wait and 0 not in nodes:
            for node in nodes:
                self.run.replace(node)
        else:
            self.start_again()

    def start_again(self) -> None:
        """End what is left of the placement, and start another one."""
        for node in range(self.run.nodes):
            self.run.kill(node)
        self.start()

    def apply(self, planned: PlannedFault) -> None:
        """Let a fault happen."""
        node, wrapper = planned.node, self.run.wrappers[planned.node]
        match planned.fault:
            case Fault.RANK_KILLED:
                _kill([*self.run.run_dir(node).registered_pids().values()])
            case Fault.AGENT_KILLED:
                with suppress(psutil.NoSuchProcess):
                    _kill([child.pid for child in psutil.Process(wrapper.pid).children()][:1])
            case Fault.WRAPPER_KILLED:
                wrapper.kill()
                wrapper.communicate()  # Its output ends with the last of its ranks.
                self.lose([node])
            case Fault.NODE_LOST:
                self.lose([node])
            case Fault.TWO_NODES_LOST:
                self.lose(sorted({node, (node + 1) % self.run.nodes}))
            case Fault.NODE_LOST_AFTER_NOTICE:
                wrapper.send_signal(signal.SIGTERM)
                self.pause(0.3)
                self.lose([node])
            case Fault.REPLACEMENT_LOST:
                self.lose([node])
                self.pause(3 * planned.pause_s)
                self.lose([node])
            case Fault.NODE_FROZEN:
                self.freeze(node, 0.5, is_replaced=False)
            case Fault.NODE_REPLACED_WHILE_FROZEN:
                self.freeze(node, 1.0, is_replaced=self.run.would_wait and node > 0)

    def freeze(self, node: int, seconds: float, *, is_replaced: bool) -> None:
        """Stop the processes of a node for a while."""
        wrapper = self.run.wrappers[node]
        Nodes.signal_processes(wrapper, signal.SIGSTOP)
        if is_replaced:
            self.run.replace(node)
        self.pause(seconds)
        Nodes.signal_processes(wrapper, signal.SIGCONT)

    def finish(self) -> None:
        """Wait for the end, with as many attempts as it takes."""
        for _ in range(int(TIMEOUT_S / 0.05)):
            codes = [wrapper.poll() for wrapper in self.run.wrappers]
            if None not in codes:
                if codes == [Exit.DONE] * self.run.nodes:
                    return
                self.start_again()
            self.pause(0.05)
        raise AssertionError("the run hangs")


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[str]]:
    """Weights of undisturbed runs by number of nodes."""

    @cache
    def weights(nodes: int) -> list[str]:
        run = Nodes(tmp_path_factory.mktemp(f"undisturbed-{nodes}"), nodes, STEPS)
        run.run()
        return run.results

    return weights


@pytest.fixture(autouse=True)
def processes() -> Iterator[None]:
    """End all processes after each test."""
    yield
    end_all()


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 10 - 1)))
def test_random_losses_change_no_weight(
    tmp_path: Path, undisturbed: Callable[[int], list[str]], seed: int
) -> None:
    nodes, schedule = draw(seed)
    print(f"{nodes} nodes: {schedule}")
    disturbed = Disturbed(tmp_path / "run", nodes)

    disturbed.start()
    for planned in schedule:
        for _ in range(400):  # Until it trains.
            if disturbed.run.run_dir(0).has_trained():
                break
            disturbed.pause(0.05)
        disturbed.pause(planned.pause_s)
        disturbed.apply(planned)
    disturbed.finish()

    assert disturbed.run.results == undisturbed(nodes)
