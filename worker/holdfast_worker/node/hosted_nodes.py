"""Wrappers of missing nodes that run on this one.

The leader of the nodes decides about them (`watchdog.hosting`). Each is a `holdfast-worker run` with the place of the missing node and a
run directory of its own, so that other nodes see a replacement. Its ranks share the devices of this node with the ranks of this node itself.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_worker.config import environment
from holdfast_worker.console import log_info
from holdfast_worker.node.fork_server import Program, Spare
from holdfast_worker.node.rank_variables import hosted_node_variables
from holdfast_worker.run_dir import RunDir
from holdfast_worker.topology.nodes import LeaderAddress, RankLayout

END_S: Final = 20.0
"""Time for the ranks of hosted nodes to end after those of this node.
A lower value cuts off exit handlers of scripts; a higher value pays for ranks that hang."""
POLL_S: Final = 0.05


PROGRAM: Final = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from holdfast_worker.node.hosted_reserve import main; main()"
)
"""The argument of `python -c`; see `fork_server.PROGRAM`. The module imports the one that imports this one."""
OUTPUTS: Final = (1, 2)
"""Files that it shares with the wrapper that started it."""


class HostedReserve:
    """The reserve of a wrapper."""

    def __init__(self, script: Sequence[str], ranks: int) -> None:
        """`ranks`: of a hosted node.

        Raises:
            OSError: no process can be created.
        """
        connection, other_end = socket.socketpair()
        with other_end:
            words = [sys.executable, "-u", "-c", PROGRAM]
            numbers = (os.getpid(), other_end.fileno(), ranks)
            self._process = subprocess.Popen(
                [*words, *map(str, numbers), script[0]],
                stdin=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
                start_new_session=True,
            )
        self._spare = Spare(0, connection)

    def run(self, words: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Have it run `python WORDS`, a wrapper; None if it has ended or does not respond."""
        program = Program.here(words, env, OUTPUTS, is_session=False)
        try:
            self._spare.run(program, OUTPUTS)
        except OSError:
            self.end()
            return None
        return self._process

    def end(self) -> None:
        """End it."""
        self._spare.disconnect()
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class _Hosted:
    start: int
    wrapper: subprocess.Popen[bytes]


class HostedNodes:
    """The hosted nodes of one wrapper."""

    def __init__(
        self,
        run_dir: RunDir,
        script: Sequence[str],
        layout: RankLayout,
        leader: LeaderAddress | None,
        *,
        is_warm: bool,
    ) -> None:
        """`run_dir`: of this node. `script`: with its arguments.

        `leader`: see `hosted_node_variables`. `is_warm`: a process is kept ready for the ranks of a lost node.
        """
        self._leader = leader
        self._run_dir = run_dir
        self._is_warm = is_warm
        self._reserve: HostedReserve | None = None
        self._script = script
        self._layout = layout
        self._running: dict[int, _Hosted] = {}

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that run here."""
        return frozenset(self._running)

    def update(self, wanted: Mapping[int, int]) -> None:
        """Host these nodes, given the number of each one's start, and no others."""
        for node, hosted in [*self._running.items()]:
            if wanted.get(node) != hosted.start:
                del self._running[node]
                _kill(hosted.wrapper)
        if self._is_warm and self._reserve is None and self._run_dir.can_replace_ranks():
            with suppress(OSError):  # Hosted ranks start as new interpreters then.
                self._reserve = HostedReserve(self._script, max(self._layout.ranks))
        for node, start in wanted.items():
            if node not in self._running:
                try:
                    self._running[node] = _Hosted(start, self._start(node, start))
                except OSError as error:
                    log_info(f"the ranks of node {node} cannot run here: {error}")

    def close(self, *, waits: bool) -> None:
        """End all hosted nodes.

        `waits`: their ranks end by themselves, together with those of this node.
        """
        until_s = time.monotonic() + (END_S if waits else 0.0)
        for hosted in self._running.values():
            while hosted.wrapper.poll() is None and time.monotonic() < until_s:
                time.sleep(POLL_S)
        self._is_warm = False
        self.update({})
        if self._reserve:
            self._reserve.end()

    def _start(self, node: int, start: int) -> subprocess.Popen[bytes]:
        run_dir = self._run_dir.path / f"hosted-{node}-{start}"
        run_dir.mkdir(parents=True, exist_ok=True)
        self._link_logs(node, RunDir(run_dir))
        env = {**environment(), **hosted_node_variables(run_dir, node, start, self._leader)}
        counts = ",".join(map(str, self._layout.ranks))
        words = ["-m", "holdfast_worker", "run", "--nproc-per-node", counts, *self._script]
        reserve, self._reserve = self._reserve, None
        return (reserve and reserve.run(words, env)) or subprocess.Popen(
            # -P: a module beside the script must not shadow one that the wrapper imports.
            [sys.executable, "-P", *words],
            env=env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _link_logs(self, node: int, hosted: RunDir) -> None:
        """Have the ranks of a node write to logs beside those of this node's ranks."""
        for rank in self._layout.ranks_of_node(node):
            log, link = self._run_dir.hosted_log_file(rank), hosted.log_file(rank)
            log.touch()
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(Path(os.path.relpath(log, link.parent)))


def _kill(wrapper: subprocess.Popen[bytes]) -> None:
    """Kill a wrapper, with which its agent and its ranks end."""
    with suppress(ProcessLookupError):
        os.killpg(wrapper.pid, signal.SIGKILL)
    wrapper.wait()
