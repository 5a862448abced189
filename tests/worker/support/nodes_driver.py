"""Driver of runs on several nodes of this machine, with one rank each."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from holdfast_worker.protocol.environment import WAITS_FILE, Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog.node_channel import channel_ports
from support.fork_server import NAMESPACE
from worker.support.node_network import CARD, Machine, NodeNetwork
from worker.support.run_driver import TIMEOUT_S, RunDriver, free_port

SCRIPT = str(Path(__file__).parents[1] / "scripts/lost_ranks.py")


def release(folder: Path, step: int | None = None) -> None:
    """Let ranks go on that the script of a run holds in a step; None: in all of them, and without pauses."""
    (folder / ("released" if step is None else f"released-{step}")).touch()


def is_held(folder: Path, step: int, rank: int) -> bool:
    """Whether the script of a run holds a rank in a step."""
    return (folder / f"held-{step}-{rank}").exists()


class Nodes:
    """A run on several nodes, and the launcher that starts and replaces them."""

    def __init__(
        self,
        path: Path,
        nodes: int = 3,
        steps: int = 24,
        script: Sequence[str] | None = None,
        network: NodeNetwork | None = None,
        workdir: Callable[[int], Path] | None = None,
        **extra: str,
    ) -> None:
        """`script`: another script with its first arguments.

        `network`: each node is a machine in it, and so is each replacement; None: all use the addresses of this machine.
        `workdir`: the working directory of a node; None: that of the tests.
        """
        self._script = script or (SCRIPT, str(steps), str(path))
        self.driver = RunDriver(path, every="5 steps")
        self.nodes = nodes
        self.wrappers: list[subprocess.Popen[str]] = []
        self.machines: list[Machine] = []
        """The machine of each node, or of the newest one in its place."""
        self.logs: list[str] = []
        """What wrappers logged that were killed."""
        self.attempt = 0
        self._network = network
        self._workdir = workdir
        self._extra = {"HOLDFAST_MAX_RESTARTS": "1", **extra}
        self._starts = [0] * nodes

    def start(self, *arguments: str) -> None:
        """Start the next attempt."""
        self._port = str(free_port())
        self._arguments = arguments
        self._starts = [0] * self.nodes
        self.attempt += 1
        if self._network:
            self.machines = [self._network.add() for _ in range(self.nodes)]
        self.wrappers = [self._start_wrapper(node) for node in range(self.nodes)]

    def _start_wrapper(self, node: int) -> subprocess.Popen[str]:
        own = {}
        if "HOLDFAST_NODE_START" in self._extra:
            own["HOLDFAST_NODE_START"] = str(self._starts[node])
        if name := self._extra.get("SLURMD_NODENAME"):  # Nodes with names of their own.
            own["SLURMD_NODENAME"] = f"{name}-{node}"
        if self._network:
            own |= {NAMESPACE: self.machines[node].namespace, "GLOO_SOCKET_IFNAME": CARD}
        self.driver.extra = {
            "HOLDFAST_MASTER_PORT": self._port,
            "HOLDFAST_RUN_DIR": str(self.run_dir(node).path),
            "SKYPILOT_NUM_NODES": str(self.nodes),
            "SKYPILOT_NODE_IPS": "\n".join(self._addresses),
            "SKYPILOT_NODE_RANK": str(node),
            **self._extra,
            **own,
        }
        self.driver.workdir = self._workdir and self._workdir(node)
        # The driver counts each wrapper as an attempt.
        self.driver.attempt = self.attempt - 1
        return self.driver.start_watched("--nproc-per-node", "1", *self._script, *self._arguments)

    @property
    def _addresses(self) -> list[str]:
        return [machine.address for machine in self.machines] or ["127.0.0.1"] * self.nodes

    @property
    def channel_ports(self) -> list[int]:
        """The ports of the channel between the wrappers."""
        return channel_ports(int(self._port))

    def run(self, *arguments: str) -> str:
        """Run to the end, and return what the wrappers logged."""
        self.start(*arguments)
        return self.finish()

    def release(self, step: int | None = None) -> None:
        """Let ranks go on that a script holds in a step, or in all of them, and end their pauses."""
        release(self.driver.path, step)

    def is_held(self, step: int) -> bool:
        """Whether the script holds all ranks in a step."""
        return all(is_held(self.driver.path, step, rank) for rank in range(self.nodes))

    def finish(self) -> str:
        """Wait for the end, also of held ranks, and return what the wrappers logged."""
        self.release()
        logs = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in self.wrappers]
        assert [wrapper.returncode for wrapper in self.wrappers] == [Exit.DONE] * self.nodes, logs
        return "".join(logs)

    def finish_without(self, *missing: int) -> str:
        """Wait for the end without nodes that are lost, and return what the other wrappers logged."""
        self.release()
        standing = [self.wrappers[node] for node in range(self.nodes) if node not in missing]
        logs = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in standing]
        assert {wrapper.returncode for wrapper in standing} == {Exit.DONE}, logs
        return "".join(logs)

    def run_dir(self, node: int) -> RunDir:
        """The run directory of a node, or of the newest one in its place."""
        start = f"-{self._starts[node]}" if self._starts[node] else ""
        return RunDir(self.driver.path / f"n{node}-{self.attempt}{start}")

    @property
    def would_wait(self) -> bool:
        """Whether the ranks would wait for the replacement of a lost node, as the first one announces."""
        return (self.run_dir(0).path / WAITS_FILE).exists()

    @staticmethod
    def signal_processes(wrapper: subprocess.Popen[str], number: signal.Signals) -> None:
        """Signal all processes of a node."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(wrapper.pid)
            for each in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def hosted_pids(self) -> list[int]:
        """Processes of ranks that run on other nodes than their own."""
        folders = self.driver.path.glob(f"n*-{self.attempt}*/hosted-*")
        return [pid for folder in folders for pid in RunDir(folder).registered_pids().values()]

    def kill(self, node: int) -> None:
        """Kill all processes of a node."""
        wrapper = self.wrappers[node]
        self.signal_processes(wrapper, signal.SIGKILL)
        self.collect_log(node)

    def collect_log(self, node: int) -> None:
        """Wait for the end of a wrapper and of its ranks, and keep what it has logged."""
        wrapper = self.wrappers[node]
        # Without its pipes: they were read before.
        log = "" if wrapper.stderr is None or wrapper.stderr.closed else wrapper.communicate()[1]
        self.logs.append(f"attempt {self.attempt}, node {node}, code {wrapper.returncode}:\n{log}")

    def replace(self, node: int, *arguments: str) -> None:
        """Start another node in the place of one, as a launcher does; `arguments`: additional ones of its script."""
        self._starts[node] += 1
        if self._network:
            self.machines[node] = self._network.add()
        self._arguments = (*self._arguments, *arguments)
        self.wrappers[node] = self._start_wrapper(node)

    @property
    def results(self) -> list[str]:
        """Digests of the weights of all ranks."""
        folder = self.driver.path
        return [(folder / f"result-{rank}").read_text() for rank in range(self.nodes)]

    def losses(self, rank: int) -> list[str]:
        """The loss of each step, of all processes of a rank."""
        return (self.driver.path / f"losses-{rank}").read_text().splitlines()

    def counts(self, *kinds: ReportKind) -> list[int]:
        """Number of reports of each kind."""
        return [len(self.driver.reports(kind)) for kind in kinds]
