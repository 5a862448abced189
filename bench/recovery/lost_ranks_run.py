"""One measurement of `lost_ranks.py`: one of three ranks or nodes is killed, and training continues."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from recovery.lost_ranks_scripts import FLOOR, HOLDFAST, LIGHTHOUSE, PLAIN, SAVE_EVERY, TORCHFT

NODES: Final = 3
TIMEOUT_S: Final = 150.0
"""Time for the start, and for the recovery.
A lower value gives up on a busy machine; a higher value waits for a way that never recovers."""
POLL_S: Final = 0.005
PHASES: Final = (
    "detect",
    "decide",
    "processes",
    "imports",
    "script",
    "process group",
    "state",
    "first step",
    "repeated",
)
"""Phases from the kill to the next new step, in order.
detect: the kill is noticed. decide: the wrappers decide what to do. processes: the script starts. imports: the script has imported.
script: the script asks for a process group. process group: the ranks are connected. state: it is loaded. first step: the first step
ends on all nodes. repeated: steps that had been made before."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is the same for all ways."""

    step_s: float
    width: int


@dataclass(frozen=True, slots=True)
class Moment:
    """When a rank or a node is killed."""

    node: int
    is_whole_node: bool
    """Whether all processes of the node are killed, and another one is started at once in its place."""
    after_steps: float
    """Time from a certain step on, in steps."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a kill cost."""

    new_step_s: float
    """Seconds from the kill to the end of the first step that had not been made before."""
    all_nodes_s: float
    """Seconds from the kill to the end of the first such step in which all nodes took part."""
    repeated_steps: int
    """Steps that all ranks made twice."""
    dropped_batches: int
    """Batches of single ranks that no step used."""
    lost_node_s: float
    """Seconds of nodes without progress until all nodes took part again."""
    has_fallen_back: bool
    """Whether all ranks were started again although only one should be replaced."""
    phases: Mapping[str, float]


class NotRecovered(Exception):
    """Training did not start or did not continue; the message has the end of the output."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark of a script."""

    node: int
    pid: int
    name: str
    at_s: float
    step: int


@dataclass(slots=True)
class Course:
    """What happened around a kill."""

    moment: Moment
    killed_s: float
    furthest: int
    """The furthest step that a rank had completed before."""
    lost_pid: int
    marks: Sequence[Mark] = ()
    agent_noticed_s: float | None = None
    """When the agent of the lost rank recorded its failure."""
    lines: Sequence[tuple[float, int, str]] = ()
    """Output of the nodes: time, node and line."""

    @property
    def survivors(self) -> list[int]:
        """The other nodes."""
        return [node for node in range(NODES) if node != self.moment.node]

    def after(self, name: str, nodes: Sequence[int] = range(NODES)) -> list[Mark]:
        """Marks of this name after the kill."""
        return [
            m for m in self.marks if m.name == name and m.at_s > self.killed_s and m.node in nodes
        ]

    def last_of_first(self, name: str, nodes: Sequence[int] = range(NODES)) -> float | None:
        """When each of the nodes had its first mark of this name; None if one has none."""
        found = [min((m.at_s for m in self.after(name, [n])), default=math.inf) for n in nodes]
        return None if math.inf in found else max(found)

    def all_nodes_at_s(self) -> float | None:
        """When all nodes had completed the same new step; None before."""
        new = [
            m
            for m in self.after("step")
            if m.step > self.furthest and (m.node != self.moment.node or m.pid != self.lost_pid)
        ]
        for step in sorted({m.step for m in new}):
            ends = {m.node: m.at_s for m in new if m.step == step}
            if len(ends) == NODES:
                return max(ends.values())
        return None

    def survivors_at_s(self) -> float:
        """When the survivors had completed their first step without the lost rank.

        A step to which the lost rank had contributed may end right after the kill, so the longer of the first two pauses counts.
        """
        ends = []
        for node in self.survivors:
            before = max(
                m.at_s
                for m in self.marks
                if m.node == node and m.name == "step" and m.at_s <= self.killed_s
            )
            first, second = [m.at_s for m in self.after("step", [node])][:2]
            ends.append(first if first - before >= second - first else second)
        return max(ends)

    def logged_s(self, text: str, node: int | None = None) -> float | None:
        """When the last of the nodes logged this for the first time; None if none did."""
        first: dict[int, float] = {}
        for at_s, from_node, line in self.lines:
            if text in line and at_s > self.killed_s and node in (None, from_node):
                first.setdefault(from_node, at_s)
        return max(first.values(), default=None)


Ends = Callable[[Course], Mapping[str, float | None]]
"""Returns the ends of the phases."""


def _replaced(course: Course) -> Mapping[str, float | None]:
    lost = [course.moment.node]
    return {
        "detect": course.agent_noticed_s,
        "decide": course.logged_s("starting the ranks of this node again", course.moment.node),
        "processes": course.last_of_first("script", lost),
        "imports": course.last_of_first("imported", lost),
        "script": course.last_of_first("asked", lost),
        "process group": course.last_of_first("connected", lost),
        "state": course.last_of_first("state", lost),
        "first step": course.all_nodes_at_s(),
    }


def _replaced_node(course: Course) -> Mapping[str, float | None]:
    waits = course.logged_s("the ranks of the others wait for its replacement", 0)
    return {**_replaced(course), "detect": waits, "decide": None}


def _restarted(course: Course) -> Mapping[str, float | None]:
    return {
        "detect": course.agent_noticed_s,
        "decide": course.logged_s("starting all ranks again"),
        "processes": course.last_of_first("script"),
        "imports": course.last_of_first("imported"),
        "process group": course.last_of_first("joined"),
        "state": course.last_of_first("state"),
        "first step": course.last_of_first("step"),
        "repeated": course.all_nodes_at_s(),
    }


def _shrunk(course: Course) -> Mapping[str, float | None]:
    return {
        "detect": course.last_of_first("dropped", course.survivors),
        "first step": course.survivors_at_s(),
    }


def _floor(course: Course) -> Mapping[str, float | None]:
    return {
        "detect": course.last_of_first("asked", course.survivors),
        "process group": course.last_of_first("connected"),
        "first step": course.all_nodes_at_s(),
    }


ReplaceNode = Callable[["Nodes", int, Callable[[int, Mapping[str, str]], None]], None]
"""Replaces a node, with a function that starts one with additional variables."""


def _start_again(_nodes: Nodes, node: int, start: Callable[[int, Mapping[str, str]], None]) -> None:
    start(node, {"HOLDFAST_NODE_START": "1"})


def _start_all_again(
    nodes: Nodes, _node: int, start: Callable[[int, Mapping[str, str]], None]
) -> None:
    """As the next attempt, on the same machines and without any delay."""
    nodes.wait_for_ends()
    for each in range(NODES):
        start(each, {"HOLDFAST_ATTEMPT": "2", "HOLDFAST_EPOCH": "2"})


def _use_spare(_nodes: Nodes, _node: int, _start: object) -> None:
    """The spare process is there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to recover from the loss of a rank or a node."""

    name: str
    label: str
    script: str
    command: Callable[[Path, int], list[str]]
    """Command of each node, from the script and a free port."""
    ends: Ends
    variables: Mapping[str, str] = field(default_factory=dict)
    replace_node: ReplaceNode
    """Starts another node in the place of a lost one, as its launcher would."""
    lighthouse: Sequence[str] | None = None
    """Options of torchft's lighthouse; None: it is not needed."""
    processes: int = NODES
    continues_with_fewer: bool = False

    def measure(self, home: Path, moment: Moment, settings: Settings) -> Loss:
        """Train on three nodes, kill a rank, and wait until all nodes train again.

        Raises:
            NotRecovered: training did not start or did not continue in time.
        """
        nodes = Nodes(home)
        try:
            shared, port = self._start(nodes, settings)

            def start_node(node: int, variables: Mapping[str, str]) -> None:
                command = self.command(home / "script.py", port)
                nodes.start(node, command, {**shared, **variables})

            course = nodes.kill(
                moment,
                settings.step_s,
                lambda: moment.is_whole_node and self.replace_node(nodes, moment.node, start_node),
            )
            return self._loss(course)
        finally:
            nodes.end()

    def _start(self, nodes: Nodes, settings: Settings) -> tuple[dict[str, str], int]:
        """Start all nodes; return their common variables, and a port."""
        port = _free_port()
        script = nodes.home / "script.py"
        script.write_text(self.script)
        if self.lighthouse is not None:
            lighthouse = nodes.home / "lighthouse.py"
            lighthouse.write_text(LIGHTHOUSE)
            options = [f"--bind=127.0.0.1:{port}", "--min_replicas=2", *self.lighthouse]
            nodes.start(NODES, [sys.executable, str(lighthouse), *options], {})
        shared = {
            **self.variables,
            "PORT": str(port),
            "STEP_S": str(settings.step_s),
            "WIDTH": str(settings.width),
            "HOLDFAST_MASTER_PORT": str(port),
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
        }
        for node in range(self.processes):
            nodes.start(node, self.command(script, port), shared)
        return shared, port

    def _loss(self, course: Course) -> Loss:
        at_s, whole_s = course.killed_s, course.all_nodes_at_s()
        assert whole_s, "all nodes train again"
        new_s = course.survivors_at_s() if self.continues_with_fewer else whole_s
        phases, from_s = {}, at_s
        ends = self.ends
        if course.moment.is_whole_node and ends is _replaced:
            ends = _replaced_node
        for phase, end_s in ends(course).items():
            if end_s is not None:
                phases[phase], from_s = end_s - from_s, end_s
        before = {(m.node, m.step) for m in course.marks if m.name == "step" and m.at_s <= at_s}
        again = {(m.node, m.step) for m in course.after("step", course.survivors)}
        dropped = [m for m in course.after("dropped") if m.at_s <= whole_s]
        return Loss(
            new_step_s=new_s - at_s,
            all_nodes_s=whole_s - at_s,
            repeated_steps=len({step for _, step in before & again}),
            # The batch of the killed rank is in no step, either.
            dropped_batches=len(dropped) + self.continues_with_fewer,
            lost_node_s=_lost_node_s(course, whole_s),
            has_fallen_back=self.ends is _replaced
            and course.logged_s("starting all ranks again") is not None,
            phases=phases,
        )


def _lost_node_s(course: Course, until_s: float) -> float:
    """Time of all nodes from the last step before the kill, less the steps in it that are new."""
    steps = [m for m in course.marks if m.name == "step" and m.at_s <= until_s]
    before = [m.at_s for m in steps if m.node == course.survivors[0] and m.at_s <= course.killed_s]
    step_s = statistics.median(b - a for a, b in itertools.pairwise(before))
    new = {(m.node, m.step) for m in steps if m.step > course.furthest}
    return NODES * (until_s - before[-1]) - step_s * len(new)


class Nodes:
    """The processes of one measurement, their output and their marks."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._marks = home / "marks"
        self._marks.mkdir()
        self._processes: list[subprocess.Popen[str]] = []
        self._of_node: dict[int, subprocess.Popen[str]] = {}
        self._lines: list[tuple[float, int, str]] = []

    def start(self, node: int, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start the process of a node, and collect its output."""
        process = subprocess.Popen(
            command,
            env={**self._environment(node), **variables},
            cwd=self.home,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._processes.append(process)
        self._of_node[node] = process
        threading.Thread(target=self._collect, args=(node, process), daemon=True).start()

    def wait_for_ends(self) -> None:
        """Wait until the processes of all nodes have ended."""
        for process in self._of_node.values():
            process.wait(TIMEOUT_S)

    def kill(self, moment: Moment, step_s: float, replace: Callable[[], object]) -> Course:
        """Kill a rank or a node during training; return what has happened when all train again.

        `replace` is called after the kill.

        Raises:
            NotRecovered: training did not start or did not continue in time.
        """
        self._wait(lambda: self._has_come_to(SAVE_EVERY + 5), "training did not start")
        time.sleep(moment.after_steps * step_s)
        marks = [m for m in self._read() if m.name == "step"]
        pid = [m.pid for m in marks if m.node == moment.node][-1]
        os.kill(pid, signal.SIGKILL)
        if moment.is_whole_node:
            wrapper = self._of_node[moment.node]
            for process in [*psutil.Process(wrapper.pid).children(recursive=True), wrapper]:
                process.kill()
        killed_s = time.time()
        furthest = max(m.step for m in self._read() if m.name == "step" and m.at_s <= killed_s)
        draft = self.home / "lost.draft"
        draft.write_text(f"{moment.node} {furthest} 1")
        draft.replace(self.home / "lost")
        replace()
        course = Course(moment, killed_s, furthest, pid)
        failure = self.home / f"run-{moment.node}" / "failure.json"

        def is_over() -> bool:
            with suppress(FileNotFoundError):
                course.agent_noticed_s = course.agent_noticed_s or failure.stat().st_mtime
            course.marks = self._read()
            return course.all_nodes_at_s() is not None

        self._wait(is_over, "training did not continue on all nodes")
        # Two more steps of each, to tell apart the pauses of those that continue with fewer nodes.
        time.sleep(3 * step_s)
        course.marks, course.lines = self._read(), list(self._lines)
        return course

    def end(self) -> None:
        """End all processes."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.5)
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in {m.pid for m in self._read()}:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home / "store", ignore_errors=True)

    def _has_come_to(self, step: int) -> bool:
        return len({m.node for m in self._read() if m.name == "step" and m.step > step}) == NODES

    def _wait(self, condition: Callable[[], bool], problem: str) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > until_s or all(p.poll() is not None for p in self._processes):
                output = "\n".join(f"{node}: {line}" for _, node, line in self._lines[-20:])
                raise NotRecovered(f"{problem}\n{output}")
            time.sleep(POLL_S)

    def _collect(self, node: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout, "it is a pipe"
        for line in process.stdout:
            self._lines.append((time.time(), node, line.rstrip()))

    def _read(self) -> list[Mark]:
        """The marks by time; the last line of a file may be incomplete."""
        marks = []
        for file in self._marks.iterdir():
            node, pid = map(int, file.name.split("-"))
            for line in file.read_text().split("\n")[:-1]:
                name, at_s, *values = line.split()
                marks.append(Mark(node, pid, name, float(at_s), int(values[0]) if values else 0))
        return sorted(marks, key=lambda mark: mark.at_s)

    def _environment(self, node: int) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "SKYPILOT"))}
        return {
            **clean,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "HOLDFAST_ATTEMPT": "1",
            "HOLDFAST_EPOCH": "1",
            "HOLDFAST_JOB": "bench",
            "HOLDFAST_RUN_DIR": str(self.home / f"run-{node}"),
            "HOLDFAST_STORE": f"file://{self.home}/store",
            "HOLDFAST_EVERY": f"{SAVE_EVERY} steps",
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
            "SKYPILOT_NUM_NODES": str(NODES),
            "SKYPILOT_NODE_RANK": str(node),
            "HOLDFAST_NODE_START": "0",
            "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * NODES),
            "NODE": str(node),
            "MARKS": str(self._marks),
            "LOST": str(self.home / "lost"),
            "SAVED": str(self.home / "saved.pt"),
        }


def _wrapper(script: Path, _port: int) -> list[str]:
    words = ["-m", "holdfast_worker", "run", "--nproc-per-node", "1", str(script)]
    return [sys.executable, *words]


def _torchrun(script: Path, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={NODES}", "--nproc-per-node=1", "--max-restarts=3"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"),
        *("--local-addr=127.0.0.1", str(script)),
    ]


def _replica_group(script: Path, _port: int) -> list[str]:
    options = ["--standalone", "--nproc-per-node=1", "--max-restarts=3"]
    return [sys.executable, "-m", "torch.distributed.run", *options, str(script)]


def _process(script: Path, _port: int) -> list[str]:
    return [sys.executable, str(script)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


WAYS: Final = (
    Way(
        name="in_process",
        replace_node=_start_again,
        label="Holdfast, in_process",
        script=HOLDFAST,
        command=_wrapper,
        ends=_replaced,
        variables={"HOLDFAST_RECOVERY": "in_process"},
    ),
    Way(
        name="restart",
        replace_node=_start_all_again,
        label="Holdfast, restart",
        script=HOLDFAST,
        command=_wrapper,
        ends=_restarted,
        variables={"HOLDFAST_RECOVERY": "restart"},
    ),
    Way(
        name="torchrun",
        replace_node=_start_again,
        label="torchrun --max-restarts",
        script=PLAIN,
        command=_torchrun,
        ends=_restarted,
        # Without the variable, restarted ranks of gloo find the addresses of the old ones, and never meet.
        variables={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
    Way(
        name="torchft",
        replace_node=_start_again,
        label="torchft, defaults",
        script=TORCHFT,
        command=_replica_group,
        ends=_shrunk,
        lighthouse=(),
        continues_with_fewer=True,
    ),
    Way(
        name="torchft-short",
        replace_node=_start_again,
        label="torchft, heartbeat timeout of 1 s",
        script=TORCHFT,
        command=_replica_group,
        ends=_shrunk,
        lighthouse=("--heartbeat_timeout_ms=1000", "--join_timeout_ms=1000"),
        continues_with_fewer=True,
    ),
    Way(
        name="floor",
        replace_node=_use_spare,
        label="floor: a new gloo group",
        script=FLOOR,
        command=_process,
        ends=_floor,
        processes=NODES + 1,
    ),
)
