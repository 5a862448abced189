"""The command `shell`: a program with a terminal on a node of a job.

One thread shows output, one sends keys, and the main thread reads them: while the service does not respond, `~.` still ends the shell.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Final, TypeVar

import typer
from holdfast_worker.protocol.node_commands import decode_bytes, encode_bytes
from holdfast_worker.protocol.node_shells import MAX_SHELL_INPUT_BYTES, OUTAGE_S
from pydantic import ValidationError

from holdfast.api.schemas.shells import ShellIn, ShellReadOut, ShellWriteIn
from holdfast.cli import output
from holdfast.cli.nodes.execute import NodeNumber
from holdfast.cli.nodes.terminal import EscapeKeys, LocalTerminal
from holdfast.cli.usage.job_argument import JobId
from holdfast.client import Client, Refused, ServiceUnreachable
from holdfast.client.connection import RETRY_PAUSES_S
from holdfast.errors import BadRequest, HoldfastError, NotPossibleNow
from holdfast.settings import own_variable, read_settings

WAIT_S: Final = 0.3
"""Seconds between two looks at a shell that its node has not taken. A lower value makes more requests; a higher value delays it."""
PACE_S: Final = 0.1
"""Minimum interval of requests for output, and with keys. A lower value exceeds a user's limit of requests; a higher value delays echoes."""
MAX_PAUSE_S: Final = 5.0
"""Maximum pause after a failed request. A lower value adds load to a service that starts; a higher value delays the terminal."""
NOTED_S: Final = 3.0
"""Time without the service after which the user reads of it. A lower value disturbs; a higher value looks like a slow program."""
CLOSE_S: Final = 3.0
"""How long the end of a shell is sent. A lower value leaves it to the node, which ends it a minute later; a higher value keeps the user."""
MAX_KEYS_BYTES: Final = 1024 * 1024
"""Keys that wait for the service. A lower value stops large pastes; a higher value uses memory."""
INTERRUPTED: Final = 130
"""Exit code after `~.`, as after Ctrl-C."""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- PROGRAM...]", help="The program and its arguments; default: bash -l, or sh."
    ),
]
T = TypeVar("T")


class ShellSession:
    """A shell between a terminal and the service."""

    def __init__(self, client: Client, job_id: str, shell_id: str, terminal: LocalTerminal) -> None:
        self._client, self._job, self._shell = client, job_id, shell_id
        self._terminal = terminal
        self._changed = threading.Condition()
        self._keys = b""
        self._written = 0
        self._closed = False
        self._left = threading.Event()
        self._last: ShellReadOut | None = None
        self._error: HoldfastError | OSError | None = None
        self._noted = threading.Event()

    def run(self) -> ShellReadOut | None:
        """Use the shell until its end; None if the user has ended it.

        Raises:
            HoldfastError: it cannot be used any more.
        """
        writer = threading.Thread(target=self._guard, args=(self._write_all,), daemon=True)
        reader = threading.Thread(target=self._guard, args=(self._read_all,), daemon=True)
        escapes = EscapeKeys()
        try:
            with self._terminal.raw():
                writer.start()
                reader.start()
                while not self._is_over:
                    keys = self._terminal.keys()
                    sent, is_end = escapes.feed(keys or b"")
                    self._pass_on(sent)
                    if is_end or keys is None:
                        return None
        finally:
            self.close()
            if writer.is_alive():
                writer.join(CLOSE_S)
            self._left.set()
        if self._error:
            raise self._error
        return self._last

    def close(self) -> None:
        """Have the shell ended, if it has not."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _pass_on(self, keys: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or len(self._keys) < MAX_KEYS_BYTES)
            self._keys += keys
            self._changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._last is not None or self._error is not None

    def _guard(self, copy: Callable[[], None]) -> None:
        """Copy in one direction; an error ends the session."""
        try:
            copy()
        except (HoldfastError, OSError) as error:
            if not self._closed:
                self._error = error
        with self._changed:
            self._changed.notify_all()
        self._terminal.wake()

    def _write_all(self) -> None:
        known = None
        while True:
            with self._changed:
                while not (self._keys or self._closed or self._is_over):
                    if self._terminal.size != known:
                        break
                    self._changed.wait()
                closed, data = self._closed, self._keys[:MAX_SHELL_INPUT_BYTES]
            if self._is_over:
                return
            began_s, size = time.monotonic(), self._terminal.size
            change = ShellWriteIn(
                at=self._written,
                data=encode_bytes(data),
                columns=size[0],
                rows=size[1],
                close=closed,
            )
            write = self._client.jobs.write_shell
            taken = self._repeated(partial(write, self._job, self._shell, change))
            known = size
            if closed:
                return
            count = min(len(data), max(0, taken.next - self._written))
            self._written += count
            with self._changed:
                self._keys = self._keys[count:]
                self._changed.notify_all()
            _pace(began_s)

    def _read_all(self) -> None:
        at = 0
        while not self._left.is_set():
            began_s = time.monotonic()
            read = self._client.jobs.read_shell
            found = self._repeated(partial(read, self._job, self._shell, at))
            data = decode_bytes(found.data)[max(0, at - found.at) :]
            self._terminal.show(data)
            at = max(at, found.at) + len(data)
            if found.state == "ended":
                self._last = found
                return
            _pace(began_s)

    def _repeated(self, call: Callable[[], T]) -> T:
        """The response to a request, which may be sent again: offsets make it harmless."""
        began_s, pause_s, has_noted = time.monotonic(), PACE_S, False
        while True:
            try:
                found = call()
            except HoldfastError as error:
                silent_s = time.monotonic() - began_s
                is_late = silent_s > (CLOSE_S if self._closed else OUTAGE_S)
                if is_late or self._left.is_set() or not _may_pass(error):
                    raise
                if silent_s > NOTED_S and not self._noted.is_set():
                    has_noted = True
                    self._noted.set()
                    self._terminal.note("the service does not respond; waiting (~. ends the shell)")
                wanted_s = error.retry_after_s if isinstance(error, Refused) else 0
                time.sleep(max(pause_s, wanted_s))
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
            else:
                if has_noted:
                    self._noted.clear()
                return found


def _pace(began_s: float) -> None:
    """Wait until the next request of a kind may begin."""
    time.sleep(max(0.0, began_s + PACE_S - time.monotonic()))


def _may_pass(error: HoldfastError) -> bool:
    """Whether a later request may succeed."""
    if isinstance(error, ServiceUnreachable):
        return error.is_temporary
    return isinstance(error, Refused) and error.problem.status in {429, 503}


def shell(job_id: JobId, command: Words = None, *, node: NodeNumber = 0) -> None:
    """Run a shell on a node of a job; ~. at the start of a line ends it."""
    if not sys.stdin.isatty():
        raise BadRequest(
            "standard input is not a terminal; to run a program without one, use `holdfast exec JOB -- COMMAND`"
        )
    terminal = LocalTerminal()
    columns, rows = terminal.size
    try:
        asked = ShellIn(
            command=command or [],
            node=node,
            terminal=own_variable("TERM") or "dumb",
            columns=columns,
            rows=rows,
        )
    except ValidationError as error:
        raise output.refused(error) from error
    with Client.from_settings(read_settings(), retry_pauses_s=RETRY_PAUSES_S) as client:
        opened = client.jobs.open_shell(job_id, asked)
        session = ShellSession(client, job_id, opened.id, terminal)
        try:
            while opened.state == "waiting":
                time.sleep(WAIT_S)
                opened = client.jobs.command(job_id, opened.id)
        except KeyboardInterrupt:
            client.jobs.write_shell(job_id, opened.id, ShellWriteIn(at=0, close=True))
            raise
        ended = session.run()
    if ended is None:
        output.echo(f"the shell on node {node} is ended")
        raise typer.Exit(INTERRUPTED)
    if ended.exit_code is None:
        raise NotPossibleNow(ended.detail)
    if ended.detail:
        output.echo(f"note: {ended.detail}")
    raise typer.Exit(ended.exit_code)
