"""Three nodes of this machine that train, one of which loses its rank or all of its processes. Used by `lost_ranks_run.py`."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from recovery.lost_ranks_scripts import SAVE_EVERY

NODES: Final = 3
TIMEOUT_S: Final = 150.0
"""Time for the start, and for the recovery.
A lower value gives up on a busy machine; a higher value waits for a way that never recovers."""
POLL_S: Final = 0.005
CONTINUED: Final = re.compile(r"training continues at step \d+ after ([0-9.]+) s")


@dataclass(frozen=True, slots=True)
class Moment:
    """When a rank or a node is killed."""

    node: int
    is_whole_node: bool
    """Whether all processes of the node are killed, and another one is started at once in its place."""
    after_steps: float
    """Time from a certain step on, in steps."""


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
    moved_s: float | None = None
    """How long ranks waited when some moved to the replacement of a node."""
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


class Nodes:
    """The processes of one measurement, their output and their marks."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._marks = home / "marks"
        self._marks.mkdir()
        self._processes: list[subprocess.Popen[str]] = []
        self._of_node: dict[int, subprocess.Popen[str]] = {}
        self._lines: list[tuple[float, int, str]] = []

    def start(self, node: int, command: Sequence[str], variables: Mapping[str, str | None]) -> None:
        """Start the process of a node, and collect its output. A variable of None is absent."""
        env = {**self._environment(node), **variables}
        process = subprocess.Popen(
            command,
            env={name: value for name, value in env.items() if value is not None},
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

    def wait_for_ends(self, within_s: float = TIMEOUT_S) -> list[int]:
        """Wait until the processes of all nodes have ended; return their exit codes.

        Raises:
            NotRecovered: one has not ended in time.
        """
        try:
            return [process.wait(within_s) for process in self._of_node.values()]
        except subprocess.TimeoutExpired:
            raise NotRecovered(f"training did not end within {within_s:.0f} s") from None

    def wait_for(self, file: Path, within_s: float) -> None:
        """Wait until a process has written this file.

        Raises:
            NotRecovered: it has not in time, or all processes have ended.
        """
        self._wait(file.exists, f"{file.name} was not written", within_s)

    def output(self, lines: int = 20) -> str:
        """The last lines that the nodes have printed."""
        return "\n".join(f"{node}: {line}" for _, node, line in self._lines[-lines:])

    def median_step_s(self, skipped: int) -> float:
        """The median duration of the steps of the first node, without the first ones."""
        ends = [m.at_s for m in self._read() if m.name == "step" and m.node == 0][skipped:]
        return statistics.median(end - start for start, end in itertools.pairwise(ends))

    def kill(
        self,
        moment: Moment,
        step_s: float,
        replace: Callable[[], object],
        *,
        prepares_s: float = 0.0,
        moves: bool = False,
    ) -> Course:
        """Kill a rank or a node during training; return what has happened when all train again.

        `replace` is called after the kill. `prepares_s`: time before it for processes that are kept ready. `moves`: it is over once ranks
        have moved to the replacement.

        Raises:
            NotRecovered: training did not start or did not continue in time.
        """
        self._wait(lambda: self._has_come_to(SAVE_EVERY + 5), "training did not start")
        time.sleep(prepares_s + moment.after_steps * step_s)
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
        if moves:
            self._wait(
                lambda: len(self._pauses_s(killed_s)) > 1, "no rank moved to the replacement"
            )
            course.moved_s = self._pauses_s(killed_s)[1]
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

    def _pauses_s(self, since_s: float) -> list[float]:
        """Seconds for which ranks waited for others, as node 0 has logged since then."""
        logged = [CONTINUED.search(line) for at_s, _, line in [*self._lines] if at_s > since_s]
        return [float(found[1]) for found in logged if found]

    def _has_come_to(self, step: int) -> bool:
        return len({m.node for m in self._read() if m.name == "step" and m.step > step}) == NODES

    def _wait(
        self, condition: Callable[[], bool], problem: str, within_s: float = TIMEOUT_S
    ) -> None:
        until_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > until_s or all(p.poll() is not None for p in self._processes):
                raise NotRecovered(f"{problem}\n{self.output()}")
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
            "MARKS": str(self._marks),
            "LOST": str(self.home / "lost"),
            "SAVED": str(self.home / "saved.pt"),
        }


def free_port() -> int:
    """A port of this machine that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
