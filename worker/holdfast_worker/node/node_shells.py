"""Runs shells of users on this node: programs with a terminal, beside its ranks.

Two threads copy input and output, and a third one waits for the end: requests may take long, and an end must not wait for them.
Each of the copying threads has the terminal open for itself, so that none uses a descriptor that another one has closed. Standard library only.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.protocol.node_commands import NOT_STARTED, NodeCommand
from holdfast_worker.protocol.node_shells import (
    CLIENT_GONE_S,
    OUTAGE_S,
    OUTPUT_BATCH_BYTES,
    ShellInput,
)
from holdfast_worker.storage.retry import JITTER
from holdfast_worker.telemetry.service_client import REFUSALS, ServiceClient, ServiceUnreachable

FLUSH_S: Final = 0.1
"""Minimum interval between two requests with output. A lower value adds requests; a higher value delays what a user sees."""
GATHER_S: Final = 0.01
"""Time for which output is gathered after its first byte. A lower value sends a screen in several requests; a higher value delays echoes."""
WATCH_S: Final = 0.1
"""Interval at which the end of a shell is looked for. A lower value uses the CPUs of ranks; a higher value delays the end."""
QUIET_S: Final = 0.2
"""Silence after the end of a program that is taken for the end of its output, as processes outside its session may hold the terminal."""
WRITE_S: Final = 0.2
"""How long a program may refuse input before its size and its client are looked at again."""
HANGUP_S: Final = 0.5
"""Time between SIGHUP and SIGKILL. A lower value loses the history of shells; a higher value delays the end of the node."""
RETRY_S: Final = 2.0
"""Maximum pause after a failed request. A lower value adds load to a service that is down; a higher value delays the terminal."""
KILL_ROUNDS: Final = 10
"""How often processes of a session are looked for and killed, as they may start others in between."""
START: Final = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_SETMASK, [])
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    os.write(2, f"{sys.argv[1]} cannot be started: {error.strerror}\\n".encode())
    os._exit(127)
"""
"""Makes its standard input the controlling terminal and runs a program. A process of its own: Python code between fork and
exec may block forever in a process with threads."""


@dataclass
class ClientPresence:
    """Whether the client of a shell is there, by what the service returns."""

    answered_s: float = field(default_factory=time.monotonic)
    """When the service last responded."""
    since_s: float | None = field(default_factory=time.monotonic)
    """Since when the service responds; None during an outage, in which the client reaches it no more than this node."""
    silent_s: float = 0.0

    def note_response(self, silent_s: float) -> None:
        """Note a response of the service, and for how long its client has been silent."""
        self.answered_s = time.monotonic()
        self.since_s = self.answered_s if self.since_s is None else self.since_s
        self.silent_s = silent_s

    def note_failure(self) -> None:
        """Note that the service did not respond."""
        self.since_s = None

    @property
    def is_gone(self) -> bool:
        """Whether the client is gone, or has given up."""
        now_s = time.monotonic()
        if self.since_s is None:
            return now_s - self.answered_s > OUTAGE_S
        return self.silent_s > CLIENT_GONE_S and now_s - self.since_s > CLIENT_GONE_S


@dataclass
class RunningShell:
    """One shell, from its start to the end of its output."""

    shell: NodeCommand
    client: ServiceClient
    runner: str
    stopped: threading.Event
    _presence: ClientPresence = field(default_factory=ClientPresence)
    _over: threading.Event = field(default_factory=threading.Event)
    """Set when it is ended, whether its program has or not."""
    _exited: threading.Event = field(default_factory=threading.Event)
    _detail: str = ""
    _size: tuple[int, int] = (0, 0)
    _written: int = 0
    _sent: int = 0
    _flushed_s: float = float("-inf")

    def run(self, env: Mapping[str, str]) -> tuple[int, str]:
        """The exit code of the shell, and what is not normal about its end."""
        until_s = time.monotonic() + self.shell.timeout_s
        while self._size == (0, 0):  # Programs read the size when they start.
            if self._must_end(until_s):
                return 128 + signal.SIGHUP, self._detail
            self._receive(None)
        words = [*self.shell.command] or _usual_shell(env)
        log_info(f"running a shell of a user: {' '.join(words)[:200]}")
        try:
            process, terminals = self._start(words, env)
        except OSError as error:
            return NOT_STARTED, f"no terminal can be opened: {error.strerror}"
        copies = [
            threading.Thread(target=copy, args=(terminal,), name="holdfast-shell", daemon=True)
            for copy, terminal in zip((self._copy_output, self._copy_input), terminals, strict=True)
        ]
        for thread in copies:
            thread.start()
        while not _has_exited(process.pid) and not self._must_end(until_s):
            self._over.wait(WATCH_S)
        code = _end_session(process)
        self._exited.set()
        while copies[0].is_alive() and not self._must_end(until_s):
            copies[0].join(WATCH_S)
        self._over.set()
        return code if code >= 0 else 128 - code, self._detail

    def _start(
        self, words: list[str], env: Mapping[str, str]
    ) -> tuple[subprocess.Popen[bytes], list[io.FileIO]]:
        """The program, and its terminal for each of the two copies."""
        master, slave = os.openpty()
        try:
            _resize(master, self._size)
            os.set_blocking(master, False)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", START, *words],
                env={**env, "TERM": self.shell.terminal or "dumb"},
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
            )
            return process, [io.FileIO(os.dup(master), "r+") for _ in range(2)]
        finally:
            os.close(master)
            os.close(slave)

    def _must_end(self, until_s: float) -> bool:
        if self.stopped.is_set():
            self._end("the job left this node while it ran")
        elif self._presence.is_gone:
            self._end(f"its client has not been seen for {CLIENT_GONE_S:g} s")
        elif time.monotonic() > until_s:
            self._end(f"it was ended after {self.shell.timeout_s:g} s")
        return self._over.is_set()

    def _end(self, detail: str = "") -> None:
        if not self._over.is_set():
            self._detail = detail
            self._over.set()

    # Input

    def _copy_input(self, terminal: io.FileIO) -> None:
        with terminal:
            while not (self._over.is_set() or self._exited.is_set()):
                self._receive(terminal)

    def _receive(self, terminal: io.FileIO | None) -> None:
        """Wait for input and write what the program accepts; without a terminal, note the size."""
        try:
            at = self._written
            found = self.client.shell_input(self.shell.id, self.runner, at, self._size)
        except ServiceUnreachable:
            self._presence.note_failure()
            self._over.wait(JITTER.uniform(0.25, 0.5) * RETRY_S)
        except REFUSALS as answer:
            self._end(f"the service refused its input: {answer}")
        else:
            self._presence.note_response(found.silent_s)
            if found.closed:
                self._end()
            elif self._apply(found, terminal):
                self._over.wait(FLUSH_S)  # A service that ends holds no requests.

    def _apply(self, found: ShellInput, terminal: io.FileIO | None) -> bool:
        """Apply a response; return whether it had nothing."""
        size = (found.columns, found.rows)
        is_same, self._size = size == self._size, size
        if terminal is None:
            return False
        if not is_same:
            _resize(terminal.fileno(), size)
        until_s, data = time.monotonic() + WRITE_S, found.data
        while data and time.monotonic() < until_s and not self._exited.is_set():
            ready = select.poll()
            ready.register(terminal, select.POLLOUT)
            ready.poll(1000 * WRITE_S)
            try:
                count = terminal.write(data) or 0
            except OSError:  # The program has closed its terminal.
                count = len(data)
            if not count:
                self._over.wait(GATHER_S)
            self._written += count
            data = data[count:]
        return is_same and not found.data

    # Output

    def _copy_output(self, terminal: io.FileIO) -> None:
        ready = select.poll()
        ready.register(terminal, select.POLLIN)
        with terminal:
            while not self._over.is_set():
                data = self._read(terminal, ready)
                if data:
                    self._send(data)
                elif data is None or self._exited.is_set():
                    return

    def _read(self, terminal: io.FileIO, ready: select.poll) -> bytes | None:
        """Output of a short time; nothing if there is none; None if there will be none."""
        data = b""
        wait_s, until_s = QUIET_S, float("inf")
        while wait_s >= 0 and len(data) < OUTPUT_BATCH_BYTES and ready.poll(1000 * wait_s):
            try:
                more = terminal.read(OUTPUT_BATCH_BYTES - len(data))
            except OSError:  # Nothing has the terminal open any more.
                if not data and not self._exited.is_set():
                    self._exited.wait(QUIET_S)
                    return b""
                return data or None
            now_s = time.monotonic()
            if until_s == float("inf"):
                until_s = max(now_s + GATHER_S, self._flushed_s + FLUSH_S)
            data += more or b""
            wait_s = until_s - now_s
        return data

    def _send(self, data: bytes) -> None:
        """Send output; while its client is behind, the program waits."""
        while data and not self._over.is_set():
            try:
                taken = self.client.send_shell_output(self.shell.id, self.runner, self._sent, data)
            except ServiceUnreachable:
                self._over.wait(JITTER.uniform(0.25, 0.5) * RETRY_S)
                continue
            except REFUSALS as answer:
                self._end(f"the service refused its output: {answer}")
                return
            count = min(len(data), max(0, taken - self._sent))
            if not count:
                self._over.wait(FLUSH_S)
            self._sent += count
            data = data[count:]
        self._flushed_s = time.monotonic()


def _usual_shell(env: Mapping[str, str]) -> list[str]:
    return ["bash", "-l"] if shutil.which("bash", path=env.get("PATH")) else ["sh"]


def _resize(terminal: int, size: tuple[int, int]) -> None:
    """Set columns and rows of a terminal; its program gets SIGWINCH."""
    columns, rows = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _has_exited(pid: int) -> bool:
    """Whether a child has exited.

    It remains a zombie, so that its number stays that of its session.
    """
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_session(process: subprocess.Popen[bytes]) -> int:
    """End all processes of a session, and return the exit code of its first one."""
    _signal_session(process.pid, signal.SIGHUP)
    _signal_session(process.pid, signal.SIGCONT)  # Stopped ones would not see it.
    until_s = time.monotonic() + HANGUP_S
    while time.monotonic() < until_s and [*_session(process.pid)]:
        time.sleep(WATCH_S / 5)
    for _ in range(KILL_ROUNDS):
        if not _signal_session(process.pid, signal.SIGKILL):
            break
        time.sleep(WATCH_S / 5)
    try:
        return process.wait(HANGUP_S)
    except subprocess.TimeoutExpired:  # It waits for a disk, and ends when that responds.
        return -signal.SIGKILL


def _signal_session(session: int, number: signal.Signals) -> bool:
    """Send a signal to all processes of a session; return whether there are any."""
    members = [*_session(session)]
    for pid in members:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return bool(members)


def _session(session: int) -> Iterator[int]:
    """The processes of a session, without zombies."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                state, _, _, found = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(found) == session and state not in "ZX":
                    yield int(folder.name)
