"""The nodes of one placement: they start, are told and end together."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from holdfast_worker.protocol.environment import LEFT_FILE, NOTICE_FILE, TRAINED_FILE, Exit

from holdfast.domain.events import LeftReason
from holdfast.host.untrusted_files import opened_file
from holdfast.launchers.local import node_guard, process_cleanup
from holdfast.launchers.local.launch_dir import NodeFolder, write_whole
from holdfast.launchers.local.outcome import NodeExit
from holdfast.launchers.local.sandbox import Sandbox

_WORDS_LIMIT: Final = 200
_TAIL_BYTES: Final = 4096
_LEFT_BYTES: Final = 65_536


class NodeProcesses:
    """Standing nodes. Their guards are children of this process, and so cannot be mistaken for anyone else."""

    def __init__(
        self, nodes: Sequence[tuple[NodeFolder, Mapping[str, str]]], cell: Sandbox | None = None
    ) -> None:
        self.folders = [folder for folder, _ in nodes]
        self.exits: list[NodeExit] = []
        """Nodes that ended by themselves, in the order in which they did."""
        self._guards = {
            node_guard.start(folder, env, cell): rank for rank, (folder, env) in enumerate(nodes)
        }

    @property
    def gone(self) -> bool:
        """True when all nodes have ended by themselves."""
        return not self._guards

    @property
    def trained(self) -> bool:
        """True once the program has finished a step."""
        return any(os.path.lexists(folder.run / TRAINED_FILE) for folder in self.folders)

    def collect(self) -> None:
        """Take note of nodes that have ended since the last time."""
        for pid, code in process_cleanup.ended_children():
            if (node := self._guards.pop(pid, None)) is not None:
                self.exits.append(_exit(node, code, self.folders[node]))

    def tell(self, deadline: datetime, leaving: Collection[int]) -> None:
        """Write the notice for all nodes, and have those of `leaving` signalled."""
        notice = json.dumps({"deadline": deadline.isoformat()})
        for folder in self.folders:
            with suppress(OSError):  # On a full disk the signal must do.
                write_whole(folder.run / NOTICE_FILE, notice)
        for pid, node in self._guards.items():
            if node in leaving:
                os.kill(pid, node_guard.LEAVE)

    def end(self) -> None:
        """Kill what still stands; when this returns, nothing of the placement runs."""
        process_cleanup.end_descendants()
        self._guards.clear()


def start(
    nodes: Sequence[tuple[NodeFolder, Mapping[str, str]]], cell: Sandbox | None = None
) -> NodeProcesses:
    """The nodes, started. Signals that guards wait for stay blocked in this process from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {node_guard.LEAVE, signal.SIGCHLD})
    return NodeProcesses(nodes, cell)


def _exit(node: int, code: int, folder: NodeFolder) -> NodeExit:
    if code < 0:
        return NodeExit(node, None)
    reason, words = _last_words(folder)
    if reason is LeftReason.PREEMPTED:
        # torchrun would make 1 of it, and a pipe such as `holdfast-worker run ... | tee log` 0.
        code = Exit.PREEMPTED
    return NodeExit(node, code, words or _last_line(folder))


def _last_words(folder: NodeFolder) -> tuple[LeftReason | None, str]:
    """What the worker of a node said on leaving."""
    # A program may put anything there, of any size and depth.
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        with opened_file(folder.path, ("run", LEFT_FILE)) as file:
            raw = json.loads(file.read(_LEFT_BYTES))
        return LeftReason(raw["reason"]), str(raw.get("detail") or "")[:_WORDS_LIMIT]
    return None, ""


def _last_line(folder: NodeFolder) -> str:
    """The last line of a node's log that has a word in it."""
    with folder.log.open("rb") as file:
        file.seek(max(0, folder.log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if re.search(r"\w", line)), "")
    return last[:_WORDS_LIMIT]
