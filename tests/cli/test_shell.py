"""`holdfast shell`: keys that end it, keys that are sent again, and a service that does not respond."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from holdfast.api.schemas.service import Problem
from holdfast.api.schemas.shells import ShellReadOut, ShellWriteIn, StreamOut
from holdfast.cli.app import app
from holdfast.cli.nodes.shell import ShellSession
from holdfast.cli.nodes.terminal import EscapeKeys
from holdfast.client import Refused, ServiceUnreachable
from holdfast.errors import BadRequest, HoldfastError
from holdfast_worker.protocol.node_commands import decode_bytes, encode_bytes
from typer.testing import CliRunner

PATIENCE_S = 120
DOWN = ServiceUnreachable("connection refused", is_temporary=True)


@pytest.mark.parametrize(
    ("typed", "sent", "ends"),
    [
        ([b"ls\r"], b"ls\r", False),
        ([b"~."], b"", True),
        ([b"~", b"."], b"", True),
        ([b"ls\r~.more"], b"ls\r", True),
        ([b"ls ~.\r"], b"ls ~.\r", False),
        ([b"~~."], b"~.", False),
        ([b"~", b"/a\r"], b"~/a\r", False),
        ([b"\n~\r~."], b"\n~\r", True),
    ],
)
def test_escape_keys_end_at_the_start_of_a_line(
    typed: list[bytes], sent: bytes, ends: bool
) -> None:
    keys = EscapeKeys()

    found = [keys.feed(each) for each in typed]

    assert b"".join(part for part, _ in found) == sent
    assert found[-1][1] is ends


class FakeTerminal:
    """A terminal without a screen."""

    def __init__(self) -> None:
        self.size = (100, 30)
        self.typed: queue.Queue[bytes | None] = queue.Queue()
        self.screen = b""
        self.notes: list[str] = []
        self.restored = False

    @contextmanager
    def raw(self) -> Iterator[None]:
        yield
        self.restored = True

    def wake(self) -> None:
        self.typed.put(b"")

    def keys(self) -> bytes | None:
        return self.typed.get(timeout=PATIENCE_S)

    def show(self, data: bytes) -> None:
        self.screen += data

    def note(self, text: str) -> None:
        self.notes.append(text)


class FakeShell:
    """A service with a shell that prints its input, up to `exit`."""

    def __init__(self, *failures: HoldfastError, room: int = 1000) -> None:
        self.failures = [*failures]
        self.room = room
        self.input = b""
        self.sizes: list[tuple[int | None, int | None]] = []
        self.closed = threading.Event()
        self.changed = threading.Condition()

    def write_shell(self, _job: str, _shell: str, change: ShellWriteIn) -> StreamOut:
        with self.changed:
            if self.failures:
                raise self.failures.pop(0)
            if change.close:
                self.closed.set()
            self.sizes.append((change.columns, change.rows))
            fresh = decode_bytes(change.data)[len(self.input) - change.at :]
            self.input += fresh[: self.room]
            self.changed.notify_all()
            return StreamOut(next=len(self.input))

    def read_shell(self, _job: str, _shell: str, at: int) -> ShellReadOut:
        with self.changed:
            self.changed.wait_for(lambda: len(self.input) > at or self.closed.is_set(), 0.2)
            is_over = b"exit\r" in self.input
            return ShellReadOut(
                state="ended" if is_over else "running",
                exit_code=5 if is_over else None,
                detail="",
                at=max(0, at - 2),  # A repeated response begins earlier.
                data=encode_bytes(self.input[max(0, at - 2) :]),
            )


def session(shell: FakeShell, terminal: FakeTerminal) -> ShellSession:
    client: Any = SimpleNamespace(jobs=shell)
    screen: Any = terminal
    return ShellSession(client, "job-1", "c1", screen)


def refused(status: int) -> Refused:
    problem = Problem(type="about:blank", title="refused", status=status, detail=f"{status}")
    return Refused(problem)


@pytest.mark.parametrize("failures", [[], [DOWN, refused(429)]])
def test_keys_are_sent_again_until_they_are_taken(failures: list[HoldfastError]) -> None:
    shell, terminal = FakeShell(*failures, room=4), FakeTerminal()
    for keys in (b"echo one\r", b"echo two\r", b"exit\r"):
        terminal.typed.put(keys)

    ended = session(shell, terminal).run()

    assert ended
    assert ended.exit_code == 5
    assert shell.input == terminal.screen == b"echo one\recho two\rexit\r"
    assert set(shell.sizes) == {(100, 30)}
    assert terminal.restored


def test_escape_closes_the_shell() -> None:
    shell, terminal = FakeShell(), FakeTerminal()
    terminal.typed.put(b"ls\r~.")

    threads = threading.active_count()
    assert session(shell, terminal).run() is None
    assert shell.closed.is_set()
    assert terminal.restored
    while threading.active_count() > threads:  # The test has a timeout.
        threading.Event().wait(0.02)


def test_escape_works_while_the_service_does_not_respond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.cli.nodes.shell.NOTED_S", 0.0)
    monkeypatch.setattr("holdfast.cli.nodes.shell.CLOSE_S", 0.5)
    shell, terminal = FakeShell(*[DOWN] * 1000), FakeTerminal()

    def end() -> None:
        while not terminal.notes:
            threading.Event().wait(0.02)
        terminal.typed.put(b"~.")

    threading.Thread(target=end).start()

    assert session(shell, terminal).run() is None
    assert terminal.notes == ["the service does not respond; waiting (~. ends the shell)"]


def test_new_size_is_sent_without_keys() -> None:
    shell, terminal = FakeShell(), FakeTerminal()

    def resize() -> None:
        with shell.changed:
            shell.changed.wait_for(lambda: shell.sizes, PATIENCE_S)
        terminal.size = (132, 43)
        terminal.wake()
        with shell.changed:
            shell.changed.wait_for(lambda: (132, 43) in shell.sizes, PATIENCE_S)
        terminal.typed.put(b"exit\r")

    threading.Thread(target=resize).start()

    assert session(shell, terminal).run()
    assert (132, 43) in shell.sizes


@pytest.mark.parametrize("error", [refused(404), ServiceUnreachable("not Holdfast")])
def test_final_error_ends_the_session(error: HoldfastError) -> None:
    shell, terminal = FakeShell(error), FakeTerminal()

    with pytest.raises(type(error)):
        session(shell, terminal).run()

    assert terminal.restored


def test_terminal_that_is_gone_closes_the_shell() -> None:
    shell, terminal = FakeShell(), FakeTerminal()
    terminal.typed.put(None)

    assert session(shell, terminal).run() is None
    assert shell.closed.is_set()


def test_shell_needs_a_terminal() -> None:
    done = CliRunner().invoke(
        app, ["shell", "j0123456789ab"], env={"HOLDFAST_URL": "http://127.0.0.1:1"}
    )

    assert isinstance(done.exception, BadRequest)
    assert "to run a program without one, use `holdfast exec" in str(done.exception)
