"""A home and a server directory with a fake SkyPilot, for tests of the server process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from holdfast import skypilot_server
from holdfast.skypilot_server import ServerDir, process
from support.live_service import free_port
from support.skypilot.fake_interpreter import FakeInterpreter, end_all

GATE = "http://127.0.0.1:1/v1/skypilot/policy/secret"


@dataclass
class ServerDirHarness:
    """A user's home directory, a server directory, and a fake interpreter."""

    user_home: Path
    server_dir: ServerDir
    interpreter: FakeInterpreter
    port: int
    messages: list[str] = field(default_factory=list)
    bystanders: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def open(self, gate_url: str = GATE, port: int | None = None) -> str:
        return skypilot_server.open_server(
            self.server_dir,
            python=self.interpreter.python,
            port=port or self.port,
            gate_url=gate_url,
            report=self.messages.append,
        )

    def stop(self) -> bool:
        return skypilot_server.stop_server(self.server_dir, self.messages.append)

    def bystander(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a process that sleeps, with these words in its command line."""
        sleeps = [sys.executable, "-c", "import time; time.sleep(300)", *words]
        process = subprocess.Popen(sleeps, env=environment or None, start_new_session=True)
        self.bystanders.append(process)
        # A process that has just started does not have its command line yet.
        deadline_s = time.monotonic() + 30
        while psutil.Process(process.pid).cmdline() != sleeps:
            assert time.monotonic() < deadline_s, "it does not begin"
        return process

    @property
    def gate_address(self) -> Path:
        """The file with the address that the server contacts."""
        return self.server_dir.home / ".sky/holdfast-gate"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        server = process.running_server(self.server_dir)
        assert server
        return server.pid

    @property
    def output(self) -> str:
        return "\n".join(self.messages)


def is_alive(process: psutil.Process) -> bool:
    """Whether the process runs. Without an init that reaps orphans, zombies stay in the list."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False  # The process ended between the two calls.


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerDirHarness]:
    """Yield a home directory, a server directory, and a fake interpreter with SkyPilot."""
    user_home = tmp_path / "person"
    user_home.mkdir()
    monkeypatch.setenv("HOME", str(user_home))
    server_dir = ServerDir(tmp_path / "skypilot")
    harness = ServerDirHarness(
        user_home, server_dir, FakeInterpreter(tmp_path / "interpreter"), free_port()
    )
    yield harness
    for bystander in harness.bystanders:
        bystander.kill()
        bystander.wait()
    end_all(server_dir.home)
