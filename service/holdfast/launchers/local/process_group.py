"""The nodes of one placement: started, notified and killed together."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from holdfast_worker.protocol.environment import (
    JOINED_FILE,
    LEFT_FILE,
    NOTICE_FILE,
    TRAINED_FILE,
    Exit,
)

from holdfast.domain.events import LeftReason
from holdfast.host.untrusted_files import opened_file
from holdfast.launchers.local import node_guard, process_cleanup
from holdfast.launchers.local.launch_dir import NodeDir, write_atomically
from holdfast.launchers.local.outcome import NodeExit
from holdfast.launchers.local.sandbox import Sandbox

_DETAIL_LIMIT: Final = 200
_TAIL_BYTES: Final = 4096
_NOTIFIED: Final = 128 + signal.SIGTERM
_LEFT_BYTES: Final = 65_536


class NodeProcesses:
    """Running nodes. Their guards are children of this process, so their pids are not reused."""

    def __init__(
        self, nodes: Sequence[tuple[NodeDir, Mapping[str, str]]], cell: Sandbox | None = None
    ) -> None:
        self.folders = [folder for folder, _ in nodes]
        self.exits: list[NodeExit] = []
        """Nodes that ended by themselves, in order."""
        self._cell = cell
        self._guards = {
            node_guard.start(folder, env, cell): rank for rank, (folder, env) in enumerate(nodes)
        }

    @property
    def have_all_exited(self) -> bool:
        """Whether all nodes have ended by themselves."""
        return not self._guards

    @property
    def trained(self) -> bool:
        """Whether the program has finished a step."""
        return any(os.path.lexists(folder.run / TRAINED_FILE) for folder in self.folders)

    def has_joined(self, node: int) -> bool:
        """Whether the program of a node has taken part in the run since its last start."""
        return os.path.lexists(self.folders[node].run / JOINED_FILE)

    def is_running(self, node: int) -> bool:
        """Whether a node has not ended."""
        return node in self._guards.values()

    def restart(self, node: int, env: Mapping[str, str]) -> None:
        """Start a node again that has ended, with the same directory."""
        process_cleanup.kill_orphans(self._guards)
        # Left by the program before, which is dead. What else the run directory holds, the worker clears.
        with suppress(OSError):
            (self.folders[node].run / JOINED_FILE).unlink()
        self._guards[node_guard.start(self.folders[node], env, self._cell)] = node

    def end(self, node: int) -> None:
        """Kill all processes of one node."""
        for pid in [pid for pid, each in self._guards.items() if each == node]:
            del self._guards[pid]
            os.kill(
                pid, signal.SIGKILL
            )  # The kernel kills its program, and this process adopts the rest.
            os.waitpid(pid, 0)
        process_cleanup.kill_orphans(self._guards)

    def reap(self) -> None:
        """Record nodes that have ended since the last call."""
        for pid, code in process_cleanup.ended_children():
            if (node := self._guards.pop(pid, None)) is not None:
                self.exits.append(_node_exit(node, code, self.folders[node]))

    def signal_notice(self, node: int) -> None:
        """Signal one node that it is about to be preempted."""
        for pid, each in self._guards.items():
            if each == node:
                os.kill(pid, node_guard.NOTICE_SIGNAL)

    def send_notice(self, deadline: datetime, leaving: Collection[int]) -> None:
        """Write the notice for all nodes and signal those of `leaving`."""
        notice = json.dumps({"deadline": deadline.isoformat()})
        for folder in self.folders:
            with suppress(OSError):  # On a full disk the signal has to suffice.
                write_atomically(folder.run / NOTICE_FILE, notice)
        for node in leaving:
            self.signal_notice(node)

    def kill(self) -> None:
        """Kill the remaining processes; return when none is left."""
        process_cleanup.kill_descendants()
        self._guards.clear()


def start(
    nodes: Sequence[tuple[NodeDir, Mapping[str, str]]], cell: Sandbox | None = None
) -> NodeProcesses:
    """Start the nodes. Signals that guards wait for stay blocked in this process from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {node_guard.NOTICE_SIGNAL, signal.SIGCHLD})
    return NodeProcesses(nodes, cell)


def _node_exit(node: int, code: int, folder: NodeDir) -> NodeExit:
    if code < 0:
        return NodeExit(node, None)
    reason, words = _exit_report(folder)
    if reason is LeftReason.PREEMPTED:
        # torchrun would turn it into 1, and a pipe such as `holdfast-worker run ... | tee log` into 0.
        code = Exit.PREEMPTED
    elif reason is LeftReason.FINISHED and code == _NOTIFIED:
        code = Exit.DONE  # The notice ended the shell, and the program has completed since.
    return NodeExit(node, code, words or _last_line(folder))


def _exit_report(folder: NodeDir) -> tuple[LeftReason | None, str]:
    """Return the reason and message that the worker wrote when it exited."""
    # A program may write anything there, of any size and depth.
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        with opened_file(folder.path, ("run", LEFT_FILE)) as file:
            raw = json.loads(file.read(_LEFT_BYTES))
        return LeftReason(raw["reason"]), str(raw.get("detail") or "")[:_DETAIL_LIMIT]
    return None, ""


def _last_line(folder: NodeDir) -> str:
    """Return the last line with a word in a node's log."""
    with folder.log.open("rb") as file:
        file.seek(max(0, folder.log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if re.search(r"\w", line)), "")
    return last[:_DETAIL_LIMIT]
