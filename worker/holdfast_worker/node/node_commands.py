"""Runs commands of users on this node, beside its ranks; shells are in `node_shells`.

They are children of the wrapper: they have its user, its confinement, its working directory and its environment, except for the token of
the job's reports. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, Final

from holdfast_worker.config import Config, environment
from holdfast_worker.console import log_info
from holdfast_worker.node.node_shells import RunningShell
from holdfast_worker.protocol.environment import Env
from holdfast_worker.protocol.node_commands import (
    MAX_OUTPUT_STREAM_BYTES,
    NOT_STARTED,
    TIMED_OUT,
    CommandOutput,
    NodeCommand,
)
from holdfast_worker.storage.retry import JITTER
from holdfast_worker.telemetry.service_client import REFUSALS, ServiceClient, ServiceUnreachable

RETRY_S: Final = 10.0
"""Maximum pause after a failed request. A lower value adds load to a service that is down; a higher value delays commands."""
FLUSH_S: Final = 0.5
"""Interval at which output is sent. A lower value adds requests; a higher value delays what a user sees."""
CHUNK_BYTES: Final = 64 * 1024
LAST_OUTPUT_S: Final = 60.0
"""How long the end of a command is sent again. A lower value loses it in a restart of the service; a higher value keeps a thread."""
ORPHAN_S: Final = 1.0
"""Time for output after the end of a command, as children may hold its pipes.
A lower value cuts the output of pipelines; a higher value delays the exit code of a command that leaves a process behind."""
MAX_RUNNING: Final = 4
"""Commands that run at once, and shells besides them. A lower value refuses a second look; a higher value disturbs training."""


@dataclass
class Stream:
    """One output of a command: what is kept, and how much of it was sent."""

    kept: bytes = b""
    sent: int = 0
    total: int = 0

    def add(self, data: bytes) -> None:
        """Keep more output, up to the limit."""
        self.total += len(data)
        self.kept += data[: MAX_OUTPUT_STREAM_BYTES - len(self.kept)]

    @property
    def unsent(self) -> bytes:
        """What was not sent yet."""
        return self.kept[self.sent : self.sent + CHUNK_BYTES]


@dataclass
class RunningCommand:
    """One command, from its start to the report of its end."""

    command: NodeCommand
    client: ServiceClient
    runner: str
    stopped: threading.Event
    refusal: str = ""
    """Why it is not run, as a sentence; empty if it is."""
    stdout: Stream = field(default_factory=Stream)
    stderr: Stream = field(default_factory=Stream)

    def run(self, env: Mapping[str, str]) -> None:
        """Run the command, unless another wrapper does, and send its output."""
        try:
            if not self._is_mine():
                return
            self._send_end(*self._result(env))
        except REFUSALS as answer:
            log_info(f"a command on this node is not reported: {answer}")

    def _result(self, env: Mapping[str, str]) -> tuple[int, str]:
        """The exit code, and what is not normal about the end."""
        if self.refusal:
            return NOT_STARTED, self.refusal
        if self.command.terminal is None:
            return self._execute(env)
        return RunningShell(self.command, self.client, self.runner, self.stopped).run(env)

    def _is_mine(self) -> bool:
        until_s = time.monotonic() + LAST_OUTPUT_S
        while not self.stopped.is_set() and time.monotonic() < until_s:
            try:
                return self.client.start_command(self.command.id, self.runner)
            except ServiceUnreachable:
                self.stopped.wait(JITTER.uniform(0.5, 1.0))
        return False

    def _execute(self, env: Mapping[str, str]) -> tuple[int, str]:
        """The exit code of the command, and what is not normal about its end."""
        words = self.command.command
        try:
            process = subprocess.Popen(
                words,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            return NOT_STARTED, f"{words[0]} cannot be started: {why}"
        log_info(f"running a command of a user: {' '.join(words)[:200]}")
        is_late = self._copy_output(process)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        details = [f"it was ended after {self.command.timeout_s:g} s"] * is_late
        details += [
            f"of {stream.total} bytes of standard {name}, the first {len(stream.kept)} are kept"
            for name, stream in (("output", self.stdout), ("error", self.stderr))
            if stream.total > len(stream.kept)
        ]
        if self.stopped.is_set():
            details.append("the job left this node while it ran")
        code = TIMED_OUT if is_late else code if code >= 0 else 128 - code
        return code, "; ".join(details)

    def _copy_output(self, process: subprocess.Popen[bytes]) -> bool:
        """Keep and send output until the command has ended; return whether it took too long."""
        assert process.stdout
        assert process.stderr
        until_s = time.monotonic() + self.command.timeout_s
        ended_s, flushed_s = None, time.monotonic()
        with process.stdout, process.stderr, selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ, self.stdout)
            ready.register(process.stderr, selectors.EVENT_READ, self.stderr)
            while not self.stopped.is_set():
                self._read_ready(ready)
                now_s = time.monotonic()
                if process.poll() is not None:
                    ended_s = ended_s or now_s
                    if not ready.get_map() or now_s - ended_s > ORPHAN_S:
                        return False
                elif now_s > until_s:
                    return True
                if now_s - flushed_s > FLUSH_S:
                    with suppress(ServiceUnreachable):
                        self._send_output()
                    flushed_s = now_s
        return False

    def _read_ready(self, ready: selectors.BaseSelector) -> None:
        if not ready.get_map():
            self.stopped.wait(FLUSH_S / 10)
            return
        for key, _ in ready.select(FLUSH_S / 5):
            pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
            if data := pipe.read(CHUNK_BYTES):
                key.data.add(data)
            else:
                ready.unregister(pipe)

    def _send_output(self, exit_code: int | None = None, detail: str = "") -> None:
        """Send output that was not sent yet; the end only with the last of it."""
        while True:
            more = CommandOutput(
                stdout=self.stdout.unsent,
                stderr=self.stderr.unsent,
                stdout_at=self.stdout.sent,
                stderr_at=self.stderr.sent,
            )
            if not (more.stdout or more.stderr):
                break
            self.client.send_command_output(self.command.id, self.runner, more)
            self.stdout.sent += len(more.stdout)
            self.stderr.sent += len(more.stderr)
        if exit_code is not None:
            end = CommandOutput(exit_code=exit_code, detail=detail)
            self.client.send_command_output(self.command.id, self.runner, end)

    def _send_end(self, exit_code: int, detail: str) -> None:
        until_s = time.monotonic() + LAST_OUTPUT_S
        while True:
            try:
                self._send_output(exit_code, detail)
            except ServiceUnreachable:
                if time.monotonic() > until_s:
                    return
                time.sleep(JITTER.uniform(0.5, 1.0))
            else:
                return


class NodeCommands(AbstractContextManager[None]):
    """Asks the service for commands for one node, in a thread, until the node has ended."""

    def __init__(self, client: ServiceClient, node: int, attempt: int) -> None:
        """`attempt`: 0 if the launcher does not number them."""
        self._client, self._node, self._attempt = client, node, attempt
        self._runner = secrets.token_hex(8)
        self._known = set[str]()
        self._running: list[tuple[threading.Thread, bool]] = []
        self._stopped = threading.Event()
        env = environment()
        self._environment = {name: env[name] for name in env if name != Env.TOKEN}

    def __enter__(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._run, name="holdfast-commands", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        """End the running commands, and report their end."""
        self._stopped.set()
        for thread, _is_shell in self._running:
            thread.join(FLUSH_S + ORPHAN_S)

    def _run(self) -> None:
        pause_s = FLUSH_S
        while not self._stopped.is_set():
            try:
                found = self._client.next_command(self._node, self._attempt)
            except ServiceUnreachable:
                self._stopped.wait(JITTER.uniform(0.5, 1.0) * pause_s)
                pause_s = min(RETRY_S, 2 * pause_s)
                continue
            except REFUSALS:
                return  # The service is of an earlier version, or runs no commands; or the job has ended.
            pause_s = FLUSH_S
            if found and found.id not in self._known:
                self._known.add(found.id)
                self._start(found)
            elif found:
                self._stopped.wait(FLUSH_S)  # It has not started yet.

    def _start(self, found: NodeCommand) -> None:
        self._running = [one for one in self._running if one[0].is_alive()]
        is_shell = found.terminal is not None
        is_full = sum(other == is_shell for _, other in self._running) >= MAX_RUNNING
        kind = "shells" if is_shell else "commands"
        refusal = f"it was not run, as {MAX_RUNNING} {kind} run on this node" if is_full else ""
        # A refused one is reported, as it would delay those behind it as long as it waits.
        one = RunningCommand(found, self._client, self._runner, self._stopped, refusal)
        thread = threading.Thread(
            target=one.run, args=(self._environment,), name="holdfast-command", daemon=True
        )
        if not is_full:
            self._running.append((thread, is_shell))
        thread.start()


def open_commands(config: Config, node: int) -> AbstractContextManager[None]:
    """Runs commands of users on a node.

    None without a service, and for a missing node on its host.
    """
    if not config.url or config.hosted_start:
        return nullcontext()
    return NodeCommands(ServiceClient(config.url, config.job, config.token), node, config.attempt)
