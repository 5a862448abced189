"""The process of the torchrun agent, as the wrapper starts it: warm if possible.

A warm agent has forked a *successor* before it started torchrun. After the ranks of the node have failed, the wrapper has the
successor run the next agent, which therefore imports nothing. The successor is an orphan by then, and the wrapper adopts it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from holdfast_worker.console import log_info
from holdfast_worker.node import fork_server
from holdfast_worker.node.fork_server import Program, Spare
from holdfast_worker.parent_process import adopt_orphans
from holdfast_worker.protocol.environment import Env

OUTPUTS: Final = (1, 2)
"""Files that an agent shares with the wrapper."""


class LogTail:
    """Copies new content of a file to a stream."""

    def __init__(self, file: Path, stream: BinaryIO) -> None:
        self._file = file
        self._stream = stream
        self._copied = file.stat().st_size if file.exists() else 0

    def copy(self) -> None:
        """Copy the content written since the last call."""
        if not self._file.exists():
            return
        with self._file.open("rb") as log:
            log.seek(self._copied)
            fresh = log.read()
        self._copied += len(fresh)
        # A closed stream or a full disk must not end training.
        with suppress(OSError):
            self._stream.write(fresh)
            self._stream.flush()


class AgentProcess:
    """Starts the agents of a node, one after another."""

    def __init__(self, *, is_warm: bool, successor: Spare | None = None) -> None:
        """`is_warm`: ranks are forked from the agent. `successor`: a process for the first agent."""
        self._is_warm = is_warm
        self._successor = successor
        if is_warm:
            adopt_orphans()

    def run(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        wait: Callable[[subprocess.Popen[bytes]], int],
        may_retry: Callable[[], bool],
    ) -> int:
        """Run an agent with the arguments of torchrun to its end, and return its exit code.

        `wait` waits for a process. An agent that ends before it starts a rank is replaced by one without forks if
        `may_retry` agrees.
        """
        if self._is_warm:
            started, agent_end = os.pipe()
            os.set_blocking(started, False)
            agent = self._start_warm(arguments, env, agent_end)
            os.close(agent_end)
            code = wait(agent)
            with os.fdopen(started, "rb") as pipe:
                has_started = bool(pipe.read(1))
            if has_started or not code or not may_retry():
                return code
            reason = f"the process that forks them ended with exit code {code}"
        else:
            reason = f"{Env.WARM} is 0"
        log_info(f"ranks start as new interpreters: {reason}")
        # -P: a module beside the script must not shadow one that torchrun imports.
        words = ["-P", "-m", "holdfast_worker.node.torchrun_agent", *arguments]
        return wait(_start(words, env))

    def _start_warm(
        self, arguments: Sequence[str], env: Mapping[str, str], started: int
    ) -> subprocess.Popen[bytes]:
        """Start an agent in the successor of the last one, or else in a new interpreter."""
        successor, self._successor = self._successor, None
        connection, agent_end = socket.socketpair()
        with agent_end:
            files = (started, agent_end.fileno())
            words = ["-u", "-c", fork_server.PROGRAM, *map(str, files), *arguments]
            agent = successor and _start_successor(successor, words, env, files)
            agent = agent or _start(words, env, *files)
        self._successor = Spare(0, connection)
        return agent


def _start_successor(
    successor: Spare, words: Sequence[str], env: Mapping[str, str], files: Sequence[int]
) -> subprocess.Popen[bytes] | None:
    """Have the successor run an agent; None if it does not respond, or was never forked."""
    numbers = [*OUTPUTS, *files]
    program = Program.here(words, env, numbers)
    try:
        return fork_server.ForkedProcess(successor, program, numbers)
    except OSError:
        return None


def _start(words: Sequence[str], env: Mapping[str, str], *files: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *words], env=env, pass_fds=files, start_new_session=True
    )
