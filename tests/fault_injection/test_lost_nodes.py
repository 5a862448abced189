"""Ranks, agents and nodes are lost at random: the weights are those of an undisturbed run to the last bit.

The test is the launcher: it replaces a lost node if the others would wait for it, and otherwise starts the next attempt. An elastic run
continues on fewer nodes, and the replacement comes later or never. A run with a sharded model starts again from memory or the store.
FAULT_SEEDS selects the number of schedules.
"""

from __future__ import annotations

import math
import random
import signal
import threading
import time
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
SLOW_PAUSE_S = 0.2
"""Time for a step of a run in which nodes are away for seconds, or which starts again."""
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
    HOSTED_RANKS_KILLED = "hosted ranks killed"
    """Ranks of missing nodes, on the nodes that run them."""
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
    returns_s: float | None = 0.0
    """Time until a lost node is replaced; None: it is not."""


class Kind(StrEnum):
    """What the run does after the loss of a node."""

    REPLICATED = "replicated"
    """Its ranks wait in their processes for the replacement."""
    ELASTIC = "elastic"
    """It continues on fewer nodes."""
    SHARDED = "sharded"
    """All ranks start again with the replacement."""


def draw(seed: int, *, is_elastic: bool = False) -> tuple[int, list[PlannedFault]]:
    """Draw a number of nodes and a schedule."""
    chance = random.Random(seed)
    nodes = chance.choice(SIZES)
    faults = [
        PlannedFault(
            chance.choice([*Fault]),
            chance.randrange(nodes),
            chance.choice([0.0, 0.05, 0.2, 0.5, 1.0, *[4.0] * is_elastic]) + chance.uniform(0, 0.3),
            chance.choice([None, 0.0, 3.0, 6.0]) if is_elastic else 0.0,
        )
        for _ in range(chance.randint(1, 4))
    ]
    return nodes, faults


class Disturbed:
    """A run, its faults, and a launcher."""

    def __init__(self, path: Path, nodes: int, kind: Kind = Kind.REPLICATED) -> None:
        path.mkdir()
        extra = {
            Kind.REPLICATED: {},
            Kind.ELASTIC: {"HOLDFAST_MIN_NODES": "1"},
            Kind.SHARDED: {"HOLDFAST_MEMORY": "4 steps"},
        }[kind]
        self._arguments = ["--shard"] * (kind is Kind.SHARDED)
        self._pause_s = PAUSE_S if kind is Kind.REPLICATED else SLOW_PAUSE_S
        self.run = Nodes(path, nodes, STEPS, HOLDFAST_NODE_START="0", **extra)
        self._passed = threading.Event()
        self._missing: dict[int, float] = {}
        """Lost nodes, and when they are replaced."""

    def pause(self, seconds: float) -> None:
        """Let the run go on, and replace the nodes that are due."""
        until_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < until_s:
            for node in [node for node, due_s in self._missing.items() if now_s >= due_s]:
                del self._missing[node]
                self.run.replace(node)
            self._passed.wait(min(0.05, until_s - now_s))

    def start(self) -> None:
        """Start the next attempt."""
        assert self.run.attempt < MOST_ATTEMPTS, "the run does not come to its end"
        self._missing.clear()
        self.run.start("--pause", str(self._pause_s), *self._arguments)

    def lose(self, nodes: list[int], returns_s: float | None = 0.0) -> None:
        """Lose nodes, and replace them if the others wait."""
        for node in nodes:
            self.run.kill(node)
        if not self.run.would_wait or 0 in nodes:
            self.start_again()
        elif returns_s == 0:
            for node in nodes:
                self._missing.pop(node, None)
                self.run.replace(node)
        else:
            due_s = math.inf if returns_s is None else time.monotonic() + returns_s
            self._missing |= dict.fromkeys(nodes, due_s)

    def start_again(self) -> None:
        """End what is left of the placement, and start another one."""
        for node in range(self.run.nodes):
            self.run.kill(node)
        self.start()

    def apply(self, planned: PlannedFault) -> None:  # noqa: C901 - one for each kind
        """Let a fault happen, unless the run has ended."""
        if self.run.wrappers[0].poll() is not None:
            return
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
                self.lose([node], planned.returns_s)
            case Fault.TWO_NODES_LOST:
                self.lose(sorted({node, (node + 1) % self.run.nodes}), planned.returns_s)
            case Fault.NODE_LOST_AFTER_NOTICE:
                wrapper.send_signal(signal.SIGTERM)
                self.pause(0.3)
                self.lose([node], planned.returns_s)
            case Fault.REPLACEMENT_LOST:
                self.lose([node])
                self.pause(3 * planned.pause_s)
                self.lose([node], planned.returns_s)
            case Fault.HOSTED_RANKS_KILLED:
                _kill(self.run.hosted_pids())
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
            codes = {
                wrapper.poll()
                for node, wrapper in enumerate(self.run.wrappers)
                if node not in self._missing
            }
            if None not in codes:
                if codes == {Exit.DONE}:
                    return
                self.start_again()
            self.pause(0.05)
        raise AssertionError("the run hangs")


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Weights of undisturbed runs by number of nodes and arguments of the script."""

    @cache
    def weights(nodes: int, *arguments: str) -> list[str]:
        run = Nodes(tmp_path_factory.mktemp(f"undisturbed-{nodes}"), nodes, STEPS)
        run.run(*arguments)
        return run.results

    return weights


@pytest.fixture(autouse=True)
def processes() -> Iterator[None]:
    """End all processes after each test."""
    yield
    end_all()


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 10 - 1)))
def test_random_losses_change_no_weight(
    tmp_path: Path, undisturbed: Callable[..., list[str]], seed: int
) -> None:
    nodes, schedule = draw(seed)
    print(f"{nodes} nodes: {schedule}")
    disturbed = Disturbed(tmp_path / "run", nodes)

    disturb(disturbed, schedule)

    assert disturbed.run.results == undisturbed(nodes)


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 10 - 1)))
def test_random_losses_of_elastic_runs_change_no_weight(
    tmp_path: Path, undisturbed: Callable[..., list[str]], seed: int
) -> None:
    nodes, schedule = draw(seed, is_elastic=True)
    print(f"{nodes} nodes: {schedule}")
    disturbed = Disturbed(tmp_path / "run", nodes, Kind.ELASTIC)

    disturb(disturbed, schedule)

    assert disturbed.run.results == undisturbed(nodes)


@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(
            pytest.param(seed, marks=pytest.mark.full)
            for seed in range(1, max(4, FAULT_SEEDS // 10))
        ),
    ],
)
def test_random_losses_of_sharded_runs_change_no_weight(
    tmp_path: Path, undisturbed: Callable[..., list[str]], seed: int
) -> None:
    nodes, schedule = draw(seed)
    print(f"{nodes} nodes: {schedule}")
    disturbed = Disturbed(tmp_path / "run", nodes, Kind.SHARDED)

    disturb(disturbed, schedule)

    assert disturbed.run.results == undisturbed(nodes, "--shard")


def disturb(disturbed: Disturbed, schedule: list[PlannedFault]) -> None:
    """Run to the end, with the faults of a schedule."""
    disturbed.start()
    for planned in schedule:
        for _ in range(400):  # Until it trains.
            if disturbed.run.run_dir(0).has_trained():
                break
            disturbed.pause(0.05)
        disturbed.pause(planned.pause_s)
        disturbed.apply(planned)
    disturbed.finish()
