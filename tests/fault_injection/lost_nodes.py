"""Schedules of faults of ranks and nodes, the launcher that replaces the nodes, and what holds of any such run.

A seed determines a schedule. The launcher replaces a lost node if the others would wait for it, and otherwise starts the next attempt.
"""

from __future__ import annotations

import itertools
import math
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import psutil
from holdfast_worker.protocol.checkpoint_keys import NONCE_DIGITS, CheckpointName
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.watchdog.group_files import GroupAnswer, GroupFiles, GroupRequest
from worker.support.node_network import Machine, NodeNetwork
from worker.support.nodes_driver import Nodes

SIZES = (2, 3, 4)
STEPS = 40
PAUSE_S = 0.05
SLOW_PAUSE_S = 0.2
"""Time for a step of a run in which nodes are away for seconds, or which starts again."""
QUICK_STEPS = 300
"""Steps of a run without pauses, in which faults hit votes, saves and copies instead of the script."""
MOST_ATTEMPTS = 8
TIMEOUT_S = 400.0
"""Time for a run to end after its faults, which only one that hangs reaches."""
MOMENT_S = 6.0
"""Time in which a moment of a recovery comes, unless the run recovers in another way."""


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
    SURVIVOR_LOST_IN_ABORT = "survivor lost in abort"
    """A rank is killed, and one of another node as soon as the first survivor has left the group."""
    SENDER_LOST = "sender lost"
    """A rank is killed, and the one that sends the state to the new one, once the new group is formed."""
    NEWCOMER_LOST = "newcomer lost"
    """A rank is killed, and the new one in its place, once the new group is formed: it receives the state."""
    NEWCOMER_LOST_IN_JOIN = "newcomer lost in join"
    """As before, but before the new group is formed."""
    HOSTED_RANKS_KILLED = "hosted ranks killed"
    """Ranks of missing nodes, on the nodes that run them."""
    NODE_FROZEN = "node frozen"
    """Its processes stop for a moment, as behind a broken network."""
    NODE_REPLACED_WHILE_FROZEN = "node replaced while frozen"
    """The launcher takes it for lost, and it returns later."""
    CHANNEL_CUT = "channel cut"
    """Its wrapper cannot reach that of node 0. Its ranks can reach the others."""
    NODE_CUT_OFF = "node cut off"
    """It cannot reach any other node. Its processes live."""


CUTS = (Fault.CHANNEL_CUT, Fault.NODE_CUT_OFF)
MOMENTS = (
    Fault.SURVIVOR_LOST_IN_ABORT,
    Fault.SENDER_LOST,
    Fault.NEWCOMER_LOST,
    Fault.NEWCOMER_LOST_IN_JOIN,
)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a network is cut, and for how long."""

    breaks: bool
    """Whether connections end. Otherwise they seem to stand."""
    heals_s: float | None
    """None: never."""
    replaced_s: float | None
    """When the launcher replaces the node, which may still live; None: it does not."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault, and when it happens."""

    fault: Fault
    node: int
    pause_s: float
    """Time after the last fault or the first step. Short ones hit the recovery from the last fault."""
    returns_s: float | None = 0.0
    """Time until a lost node is replaced; None: it is not."""
    delay_s: float = 0.0
    """Time from a moment of the recovery to the second loss."""
    cut: Cut | None = None
    """Of a network."""


class Kind(StrEnum):
    """What the run does after the loss of a node."""

    REPLICATED = "replicated"
    """Its ranks wait in their processes for the replacement."""
    ELASTIC = "elastic"
    """It continues on fewer nodes."""
    SHARDED = "sharded"
    """All ranks start again with the replacement."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run and its faults."""

    kind: Kind
    nodes: int
    steps: int
    step_pause_s: float
    every_steps: int
    """Interval of snapshots in memory, if it has any."""
    faults: Sequence[PlannedFault]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of the script with an influence on the weights."""
        return ("--shard",) if self.kind is Kind.SHARDED else ()


def draw(seed: int, kind: Kind, *, cuts: bool = False) -> Schedule:
    """Draw a schedule; `cuts`: at least one of its faults is a cut of the network."""
    chance = random.Random(f"{seed} {kind} {cuts}")
    nodes, is_elastic = chance.choice(SIZES), kind is Kind.ELASTIC
    is_quick = not cuts and chance.random() < 0.25
    known = [fault for fault in Fault if fault not in CUTS]
    if kind is Kind.SHARDED:  # Its ranks do not meet in another group.
        known = [fault for fault in known if fault not in MOMENTS]
    faults = [
        chance.choice(known) for _ in range(chance.randint(0 if cuts else 1, 2 if cuts else 4))
    ]
    if cuts:
        faults.insert(chance.randint(0, len(faults)), chance.choice(CUTS))
    return Schedule(
        kind,
        nodes,
        QUICK_STEPS if is_quick else STEPS,
        0.0 if is_quick else PAUSE_S if kind is Kind.REPLICATED and not cuts else SLOW_PAUSE_S,
        chance.choice([1, 4]),
        [_plan(chance, fault, nodes, is_elastic=is_elastic) for fault in faults],
    )


def _plan(chance: random.Random, fault: Fault, nodes: int, *, is_elastic: bool) -> PlannedFault:
    heals_s = chance.choice([None, *(chance.uniform(1, 20) for _ in range(3))])
    replaced_s = chance.choice([None, chance.uniform(0, 3), chance.uniform(3, 15)])
    return PlannedFault(
        fault,
        chance.randrange(1 if fault is Fault.CHANNEL_CUT else 0, nodes),
        chance.choice([0.0, 0.05, 0.2, 0.5, 1.0, *[4.0] * is_elastic]) + chance.uniform(0, 0.3),
        chance.choice([None, 0.0, 3.0, 6.0]) if is_elastic else 0.0,
        chance.choice([0.0, chance.uniform(0, 0.1)]),
        # A silent cut is noticed after a minute.
        Cut(chance.random() < 0.7, heals_s, replaced_s) if fault in CUTS else None,
    )


@dataclass(slots=True)
class Undisturbed:
    """What an undisturbed run has computed."""

    results: list[str]
    losses: list[list[str]]
    """The loss of each step, by rank."""


class Disturbed:
    """A run, its faults, and a launcher."""

    def __init__(self, path: Path, schedule: Schedule, network: NodeNetwork | None = None) -> None:
        path.mkdir()
        extra = {
            Kind.REPLICATED: {},
            Kind.ELASTIC: {"HOLDFAST_MIN_NODES": "1"},
            Kind.SHARDED: {"HOLDFAST_MEMORY": f"{schedule.every_steps} steps"},
        }[schedule.kind]
        self._schedule = schedule
        self.run = Nodes(
            path,
            schedule.nodes,
            schedule.steps,
            network=network,
            HOLDFAST_NODE_START="0",
            **extra,
        )
        self._network = network
        self._passed = threading.Event()
        self._missing: dict[int, float] = {}
        """Lost nodes, and when they are replaced."""
        self._due: list[tuple[float, Callable[[], None]]] = []
        """What happens later to the network."""
        self._is_cut = False
        """Whether the network was cut during this attempt."""

    def disturb(self) -> None:
        """Run to the end, with the faults of the schedule.

        If that fails, print what the wrappers have logged.
        """
        try:
            self._disturb()
        except AssertionError:
            for node in range(self.run.nodes):
                self.run.kill(node)
            print(*self.run.logs, sep="\n")
            raise

    def _disturb(self) -> None:
        self.start()
        for planned in self._schedule.faults:
            for _ in range(400):  # Until it trains.
                if self.run.run_dir(0).has_trained():
                    break
                self.pause(0.05)
            self.pause(planned.pause_s)
            self.apply(planned)
        self.finish()

    def pause(self, seconds: float) -> None:
        """Let the run go on, and do what is due: replace nodes, and repair the network."""
        until_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < until_s:
            for node in [node for node, due_s in self._missing.items() if now_s >= due_s]:
                del self._missing[node]
                self.run.replace(node)
            for due in [due for due in self._due if now_s >= due[0]]:
                self._due.remove(due)
                due[1]()
            self._passed.wait(min(0.05, until_s - now_s))

    def start(self) -> None:
        """Start the next attempt."""
        assert self.run.attempt < MOST_ATTEMPTS, "the run does not come to its end"
        self._missing.clear()
        self._is_cut = False
        self.run.start("--pause", str(self._schedule.step_pause_s), *self._schedule.arguments)

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

    def apply(self, planned: PlannedFault) -> None:  # noqa: C901, PLR0912 - one for each kind
        """Let a fault happen, unless the run has ended."""
        if self.run.wrappers[0].poll() is not None:
            return
        node, wrapper = planned.node, self.run.wrappers[planned.node]
        match planned.fault:
            case Fault.RANK_KILLED:
                self._kill_rank(node)
            case Fault.AGENT_KILLED:
                with suppress(psutil.NoSuchProcess):
                    _kill([child.pid for child in psutil.Process(wrapper.pid).children()][:1])
            case Fault.WRAPPER_KILLED:
                wrapper.kill()
                self.run.collect_log(node)  # Its output ends with the last of its ranks.
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
            case Fault.CHANNEL_CUT | Fault.NODE_CUT_OFF:
                self.cut(planned)
            case _:
                self.lose_again(planned)

    def lose_again(self, planned: PlannedFault) -> None:
        """Kill a rank, and another one at a certain moment of the recovery."""
        lost, other = planned.node, (planned.node + 1) % self.run.nodes
        formed = self._formed()
        self._kill_rank(lost)
        match planned.fault:
            case Fault.SURVIVOR_LOST_IN_ABORT:
                self._wait_for(lambda: any(not each.is_new for each in self._requests(formed)))
            case Fault.NEWCOMER_LOST_IN_JOIN:
                self._wait_for(lambda: any(each.is_new for each in self._requests(formed)))
                other = lost
            case Fault.SENDER_LOST:
                self._wait_for(lambda: self._formed() > formed)
                other = min({*range(self.run.nodes)} - {lost})
            case Fault.NEWCOMER_LOST:
                self._wait_for(lambda: self._formed() > formed)
                other = lost
        self._passed.wait(planned.delay_s)
        self._kill_rank(other)

    def freeze(self, node: int, seconds: float, *, is_replaced: bool) -> None:
        """Stop the processes of a node for a while."""
        wrapper = self.run.wrappers[node]
        Nodes.signal_processes(wrapper, signal.SIGSTOP)
        if is_replaced:
            self.run.replace(node)
        self.pause(seconds)
        Nodes.signal_processes(wrapper, signal.SIGCONT)

    def cut(self, planned: PlannedFault) -> None:
        """Cut the network of a node, and plan what happens to it later."""
        cut, network, node = planned.cut, self._network, planned.node
        assert cut, "it is part of such a fault"
        assert network, "the run has a network"
        machine, leader, ports = (
            self.run.machines[node],
            self.run.machines[0],
            self.run.channel_ports,
        )
        if planned.fault is Fault.CHANNEL_CUT:
            network.cut_ports(machine, leader, ports, breaks=cut.breaks)
            heal = partial(network.reconnect_ports, machine, leader, ports)
        else:
            network.cut_off(machine, breaks=cut.breaks)
            heal = partial(network.reconnect, machine)
        self._is_cut = True
        now_s = time.monotonic()
        if cut.heals_s is not None:
            self._due.append((now_s + cut.heals_s, heal))
        if cut.replaced_s is not None and node:
            self._due.append((now_s + cut.replaced_s, partial(self._replace_living, node, machine)))

    def _replace_living(self, node: int, machine: Machine) -> None:
        """Replace a node that may live behind a broken network, if the others would wait for another one."""
        is_same = self.run.machines[node] is machine and node not in self._missing
        if is_same and self.run.would_wait and self.run.wrappers[0].poll() is None:
            self.run.replace(node)

    def finish(self) -> None:
        """Wait for the end, with as many attempts as it takes."""
        until_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until_s:
            codes = {
                node: wrapper.poll()
                for node, wrapper in enumerate(self.run.wrappers)
                if node not in self._missing
            }
            if None not in codes.values():
                if {*codes.values()} == {Exit.DONE}:
                    for node in codes:
                        self.run.collect_log(node)
                    return
                self.start_again()
            # A program that fails ends the placement. Without a cut, the others have to notice it by themselves.
            elif self._is_cut and not {*codes.values()} <= {None, Exit.DONE}:
                self.pause(1.0)
                self.start_again()
            self.pause(0.05)
        raise AssertionError("the run hangs")

    def _kill_rank(self, node: int) -> None:
        _kill([*self.run.run_dir(node).registered_pids().values()])

    def _requests(self, formed: int) -> list[GroupRequest]:
        """Requests for groups after this one, and of new ranks that wait for the decision of node 0."""
        files = [GroupFiles(self.run.run_dir(node)) for node in range(self.run.nodes)]
        found = [request for each in files for request in each.requests()]
        return [request for request in found if request.generation > formed or request.is_new]

    def _formed(self) -> int:
        """The generation of the newest group, as node 0 has decided."""
        answer = GroupFiles(self.run.run_dir(0)).read_answer() or GroupAnswer(generation=0)
        return answer.generation if answer.is_formed else answer.generation - 1

    def _wait_for(self, moment: Callable[[], bool]) -> None:
        until_s = time.monotonic() + MOMENT_S
        while not moment() and time.monotonic() < until_s:
            self._passed.wait(0.002)

    def check(self, undisturbed: Undisturbed) -> None:
        """Check what holds of any run, however it was disturbed."""
        folder = self.run.driver.path
        assert self.run.results == undisturbed.results
        for rank in range(self.run.nodes):
            # A rank may be killed between a step and its record.
            assert {*self.run.losses(rank)} <= {*undisturbed.losses[rank]}, "steps differ"
            check_successors(self._processes(rank), late=1)
        commits = sorted((folder / "store/lesson/commits").iterdir(), key=_written_ns)
        names = [CheckpointName.of_key(f"commits/{file.name}") for file in commits]
        starts = [(each.epoch, each.nonce[:NONCE_DIGITS]) for each in names if each]
        check_successors(starts, late=0)
        assert starts == sorted(starts, key=lambda start: start[0]), "a replaced attempt commits"
        for log in self.run.logs:
            assert "Traceback" not in log, log
            if f"code {Exit.FAILED}:" in log:
                assert "holdfast: ending all ranks: " in log

    def _processes(self, rank: int) -> list[str]:
        """The process that made each step of a rank, in the order of their ends."""
        return (self.run.driver.path / f"processes-{rank}").read_text().splitlines()


def check_successors(makers: Sequence[object], *, late: int) -> None:
    """Check that each maker makes at most `late` things, which it had almost made, after the first one of its successor."""
    order: dict[object, int] = {}
    counts: Counter[object] = Counter()
    for maker in makers:
        order.setdefault(maker, len(order))
        counts[maker] += order[maker] < len(order) - 1
    runs = [(maker, len([*some])) for maker, some in itertools.groupby(makers)]
    assert max(counts.values(), default=0) <= late, f"two groups train: {runs}"


def _written_ns(file: Path) -> int:
    return file.stat().st_mtime_ns


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
