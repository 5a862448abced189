"""Commands of users on a node: environment, output, exit codes, timeouts and their end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_worker.config import temporary_variables
from holdfast_worker.node.node_commands import NodeCommands
from holdfast_worker.protocol.node_commands import (
    MAX_OUTPUT_STREAM_BYTES,
    CommandOutput,
    NodeCommand,
)
from holdfast_worker.telemetry.service_client import (
    ReportRejected,
    ServiceClient,
    ServiceUnreachable,
)


class CommandService(ServiceClient):
    """A service with commands for one node, which records their output."""

    def __init__(self, *commands: NodeCommand) -> None:
        super().__init__("http://127.0.0.1:1", "job-1", "token")
        self.__dict__.update(
            waiting=[*commands],
            taken=set(),
            outages=0,
            stdout=b"",
            stderr=b"",
            end=None,
            ended=threading.Event(),
            asked=threading.Event(),
        )

    def next_command(self, node: int, attempt: int) -> NodeCommand | None:
        assert (node, attempt) == (2, 5)
        found: NodeCommand | None = (
            self.__dict__["waiting"][0] if self.__dict__["waiting"] else None
        )
        if not found:
            self.__dict__["asked"].set()
            raise ReportRejected("403: no commands")
        return found

    def start_command(self, command: str, runner: str) -> bool:
        self._fail_sometimes()
        self.__dict__["waiting"] = [w for w in self.__dict__["waiting"] if w.id != command]
        return command not in self.__dict__["taken"]

    def send_command_output(self, command: str, runner: str, output: CommandOutput) -> None:
        self._fail_sometimes()
        for name in ("stdout", "stderr"):
            known: bytes = self.__dict__[name]
            if getattr(output, f"{name}_at") == len(known):
                self.__dict__[name] = known + getattr(output, name)
        if output.exit_code is not None:
            self.__dict__["end"] = output
            self.__dict__["ended"].set()

    def _fail_sometimes(self) -> None:
        if self.__dict__["outages"]:
            self.__dict__["outages"] -= 1
            raise ServiceUnreachable("connection refused")


@pytest.fixture(autouse=True)
def variables() -> Iterator[None]:
    with temporary_variables({"HOLDFAST_TOKEN": "hfw_secret", "OWN_SECRET": "own"}):
        yield


def python(code: str) -> NodeCommand:
    return NodeCommand("c1", (sys.executable, "-c", code), 60)


def run(*commands: NodeCommand, outages: int = 0) -> CommandService:
    """Run commands until the first has ended."""
    service = CommandService(*commands)
    service.__dict__["outages"] = outages
    with NodeCommands(service, 2, 5):
        assert service.__dict__["ended"].wait(60)
    return service


def result(service: CommandService) -> tuple[int | None, str, bytes, bytes]:
    end: CommandOutput = service.__dict__["end"]
    return end.exit_code, end.detail, service.__dict__["stdout"], service.__dict__["stderr"]


@pytest.mark.parametrize("outages", [0, 1])
def test_output_and_exit_code_reach_the_service(outages: int) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"

    assert result(run(python(code), outages=outages)) == (3, "", b"out\n", b"err\n")


def test_command_has_the_environment_without_the_token() -> None:
    code = "import os; print(os.getcwd(), os.environ['OWN_SECRET'], 'HOLDFAST_TOKEN' in os.environ)"

    assert result(run(python(code)))[2] == f"{Path.cwd()} own False\n".encode()


def test_program_that_cannot_be_started_is_a_sentence() -> None:
    found = result(run(NodeCommand("c1", ("no-such-program",), 60)))

    assert found[:2] == (127, "no-such-program cannot be started: No such file or directory")


def test_command_is_ended_at_its_timeout_with_children() -> None:
    # A shell, which starts at once, also on a busy machine.
    command = NodeCommand("c1", ("sh", "-c", "sleep 999 & echo $!; sleep 999"), 5)

    exit_code, detail, out, _ = result(run(command))

    assert (exit_code, detail) == (124, "it was ended after 5 s")
    wait_gone(int(out))


def wait_gone(pid: int) -> None:
    """Wait until a process has ended; it may be a zombie of a parent that is gone."""
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} still runs")


def test_long_output_is_cut() -> None:
    size = MAX_OUTPUT_STREAM_BYTES + 10

    exit_code, detail, out, _ = result(run(python(f"print('x' * {size - 1})")))

    assert exit_code == 0
    assert detail == (
        f"of {size} bytes of standard output, the first {MAX_OUTPUT_STREAM_BYTES} are kept"
    )
    assert out == b"x" * MAX_OUTPUT_STREAM_BYTES


def test_process_left_behind_does_not_delay_the_end() -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)'])"

    assert result(run(python(code)))[0] == 0


def test_command_of_another_wrapper_is_not_run(tmp_path: Path) -> None:
    service = CommandService(python(f"open({str(tmp_path)!r} + '/ran', 'w')"))
    service.__dict__["taken"].add("c1")

    with NodeCommands(service, 2, 5):
        assert service.__dict__["asked"].wait(60)

    assert not (tmp_path / "ran").exists()
    assert service.__dict__["end"] is None


@pytest.mark.parametrize(("terminal", "kind"), [(None, "commands"), ("xterm", "shells")])
def test_one_too_many_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, terminal: str | None, kind: str
) -> None:
    monkeypatch.setattr("holdfast_worker.node.node_commands.MAX_RUNNING", 0)

    found = result(run(NodeCommand("c1", ("ls",), 60, terminal)))

    assert found[:2] == (127, f"it was not run, as 0 {kind} run on this node")


def test_commands_end_with_the_node() -> None:
    service = CommandService(python("import time; print('on', flush=True); time.sleep(999)"))
    with NodeCommands(service, 2, 5):
        until_s = time.monotonic() + 60
        while not service.__dict__["stdout"] and time.monotonic() < until_s:
            time.sleep(0.05)

    assert service.__dict__["ended"].wait(60)
    assert result(service)[:2] == (137, "the job left this node while it ran")
