"""Shells of users on a node: terminal, size, signals, long output, and their end."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from holdfast_worker.config import temporary_variables
from holdfast_worker.node.node_commands import NodeCommands
from holdfast_worker.protocol.node_commands import CommandOutput, NodeCommand
from holdfast_worker.protocol.node_shells import MAX_SHELL_OUTPUT_BYTES, ShellInput
from holdfast_worker.telemetry.service_client import (
    ReportRejected,
    ServiceClient,
    ServiceUnreachable,
)

PATIENCE_S = 120


@dataclass
class Terminal:
    """What a user does and sees."""

    keys: bytes = b""
    size: tuple[int, int] = (100, 30)
    closed: bool = False
    silent_s: float = 0.0
    reads: bool = True
    """Whether the client takes output; otherwise it waits in the service."""
    outages: int = 0
    seen: bytes = b""
    waiting: bytes = b""
    most_waiting: int = 0
    start: bytes = b""
    starts: list[str] = field(default_factory=list)
    end: CommandOutput | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def until(self, holds: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, PATIENCE_S), self.seen

    def shows(self, text: bytes) -> None:
        self.until(lambda: text in self.seen)

    def change(self, **values: object) -> None:
        with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def type(self, keys: bytes) -> None:
        self.change(keys=self.keys + keys)

    def read(self) -> None:
        """Take output that waits, as the client does."""
        if self.reads:
            self.seen += self.waiting
            self.waiting = b""


class ShellService(ServiceClient):
    """A service with one shell."""

    def __init__(self, terminal: Terminal, *command: str, timeout_s: float) -> None:
        super().__init__("http://127.0.0.1:1", "job-1", "token")
        shell = NodeCommand("c1", command, timeout_s, "xterm-test")
        self.__dict__.update(terminal=terminal, shell=shell)

    @property
    def user(self) -> Terminal:
        found: Terminal = self.__dict__["terminal"]
        return found

    def next_command(self, node: int, attempt: int) -> NodeCommand | None:
        if self.user.starts:
            raise ReportRejected("403: no commands")
        found: NodeCommand = self.__dict__["shell"]
        return found

    def start_command(self, command: str, runner: str) -> bool:
        self.user.starts.append(runner)
        return True

    def shell_input(self, shell: str, runner: str, at: int, size: tuple[int, int]) -> ShellInput:
        user = self.user
        with user.changed:
            self._fail_sometimes()
            user.changed.wait_for(
                lambda: len(user.keys) > at or user.size != size or user.closed or user.end, 0.2
            )
            return ShellInput(
                data=user.keys[at:],
                columns=user.size[0],
                rows=user.size[1],
                closed=user.closed or user.end is not None,
                silent_s=user.silent_s,
            )

    def send_shell_output(self, shell: str, runner: str, at: int, data: bytes) -> int:
        user = self.user
        with user.changed:
            self._fail_sometimes()
            known = len(user.seen) + len(user.waiting)
            room = MAX_SHELL_OUTPUT_BYTES - len(user.waiting)
            user.waiting += data[known - at :][:room]
            user.most_waiting = max(user.most_waiting, len(user.waiting))
            taken = len(user.seen) + len(user.waiting)
            user.read()
            user.changed.notify_all()
            if taken == at:
                user.changed.wait_for(lambda: user.reads or user.end, 0.2)
                user.read()
            return taken

    def send_command_output(self, command: str, runner: str, output: CommandOutput) -> None:
        self.user.change(end=output)

    def _fail_sometimes(self) -> None:
        if self.user.outages:
            self.user.change(outages=self.user.outages - 1)
            raise ServiceUnreachable("connection refused")


@pytest.fixture(autouse=True)
def variables() -> Iterator[None]:
    with temporary_variables({"HOLDFAST_TOKEN": "hfw_secret", "PS1": "$ ", "ENV": ""}):
        yield


@pytest.fixture
def user() -> Terminal:
    return Terminal()


@pytest.fixture
def opened(user: Terminal) -> Iterator[Callable[..., NodeCommands]]:
    """Opens a shell; the node leaves at the end of the test."""
    nodes: list[NodeCommands] = []

    def open_shell(*command: str, timeout_s: float = PATIENCE_S) -> NodeCommands:
        node = NodeCommands(ShellService(user, *command, timeout_s=timeout_s), 0, 1)
        node.__enter__()
        nodes.append(node)
        return node

    yield open_shell
    for node in nodes:
        node.__exit__(None, None, None)


def ended(user: Terminal) -> tuple[int | None, str]:
    user.until(lambda: user.end)
    assert user.end
    return user.end.exit_code, user.end.detail


def test_keys_are_echoed_and_exit_code_returned(
    user: Terminal, opened: Callable[..., NodeCommands]
) -> None:
    opened("sh")
    user.type(b"echo $((40 + 2)); tty; stty size; echo $TERM${HOLDFAST_TOKEN}.; exit 7\r")

    assert ended(user) == (7, "")
    assert b"stty size; echo $TERM" in user.seen  # The echo.
    assert b"42\r\n/dev/pts/" in user.seen
    assert b"\r\n30 100\r\nxterm-test.\r\n" in user.seen


def test_usual_shell_is_a_login_shell(user: Terminal, opened: Callable[..., NodeCommands]) -> None:
    opened()
    user.type(b"shopt -q login_shell && echo is-$((1))-login; exit\r")

    assert ended(user)[0] == 0
    assert b"is-1-login" in user.seen


def test_size_of_the_terminal_follows_that_of_the_user(
    user: Terminal, opened: Callable[..., NodeCommands]
) -> None:
    opened("sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.1; done")
    user.shows(b"ready")

    user.change(size=(133, 44))

    user.shows(b"44 133")


def test_ctrl_c_reaches_the_program_and_not_the_shell(
    user: Terminal, opened: Callable[..., NodeCommands], tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("program-1\n")
    opened("sh")
    # A program prints it: while a shell starts one, the terminal is still that of the shell, and dash may lose the signal.
    user.type(f"tail -f {tmp_path}/lines\r".encode())
    user.shows(b"program-1")

    user.type(b"\x03")
    user.type(b"echo code-$?\rexit 3\r")

    user.shows(b"code-130")
    assert ended(user) == (3, "")


def test_megabyte_is_intact_while_its_client_is_behind(
    user: Terminal, opened: Callable[..., NodeCommands]
) -> None:
    user.reads = False
    code = "import os\nfor n in range(20_000): os.write(1, b'%05d' % n * 10 + b'\\n')"
    opened(sys.executable, "-c", code)

    user.until(lambda: len(user.waiting) == MAX_SHELL_OUTPUT_BYTES)
    user.change(reads=True, outages=2)

    assert ended(user) == (0, "")
    wanted = b"".join(b"%05d" % n * 10 + b"\r\n" for n in range(20_000))
    assert len(wanted) > 1_000_000
    assert hashlib.sha256(user.seen).digest() == hashlib.sha256(wanted).digest()
    assert user.most_waiting <= MAX_SHELL_OUTPUT_BYTES


def test_pasted_text_arrives_once(
    user: Terminal, opened: Callable[..., NodeCommands], tmp_path: Path
) -> None:
    opened("sh", "-c", f"stty raw -echo; echo ready; head -c 100000 > {tmp_path}/pasted")
    user.shows(b"ready")
    text = b"".join(b"%09d\n" % n for n in range(10_000))

    user.change(keys=text, outages=1)

    assert ended(user)[0] == 0
    assert (tmp_path / "pasted").read_bytes() == text


@pytest.mark.parametrize("how", ["closed", "gone", "late", "left"])
def test_shell_ends_with_all_its_processes(
    user: Terminal,
    opened: Callable[..., NodeCommands],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    monkeypatch.setattr("holdfast_worker.node.node_shells.CLIENT_GONE_S", 0.5)
    stubborn = "trap '' HUP TERM; sleep 999 & echo $! $$; wait; sleep 999"
    node = opened("sh", "-c", stubborn, timeout_s=5 if how == "late" else PATIENCE_S)
    user.shows(b"\r\n")
    child, shell = user.seen.split()[:2]

    if how == "left":
        node.__exit__(None, None, None)
    user.change(closed=how == "closed", silent_s=61 if how == "gone" else 0.0)

    details = {
        "closed": "",
        "gone": "its client has not been seen for 0.5 s",
        "late": "it was ended after 5 s",
        "left": "the job left this node while it ran",
    }
    assert ended(user) == (137, details[how])
    assert not [pid for pid in (child, shell) if Path(f"/proc/{int(pid)}/cwd").is_dir()]


def test_outage_of_the_service_does_not_end_a_shell(
    user: Terminal, opened: Callable[..., NodeCommands]
) -> None:
    """The client reaches the service as little as the node, and comes back after it."""
    opened("sh")
    user.type(b"echo on-$((1))\r")
    user.shows(b"on-1")

    user.change(outages=3, silent_s=300.0)
    user.until(lambda: not user.outages)
    user.change(silent_s=0.0)
    user.type(b"exit 4\r")

    assert ended(user) == (4, "")


def test_program_that_cannot_be_started_is_named(
    user: Terminal, opened: Callable[..., NodeCommands]
) -> None:
    opened("no-such-program")

    assert ended(user) == (127, "")
    assert user.seen == b"no-such-program cannot be started: No such file or directory\r\n"


def test_process_in_another_session_does_not_delay_the_end(
    user: Terminal, opened: Callable[..., NodeCommands]
) -> None:
    opened("sh", "-c", "setsid sleep 5 & echo done; sleep 0.1")

    assert ended(user)[0] == 0
    assert user.seen == b"done\r\n"
