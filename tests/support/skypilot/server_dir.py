"""A person's home and a server's folder, with an understudy for SkyPilot: what tests of the server as a process stand on."""

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
    """A person's home, a server's folder, and an understudy."""

    person: Path
    place: ServerDir
    interpreter: FakeInterpreter
    port: int
    said: list[str] = field(default_factory=list)
    bystanders: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def open(self, gate_url: str = GATE, port: int | None = None) -> str:
        return skypilot_server.open_server(
            self.place,
            python=self.interpreter.python,
            port=port or self.port,
            gate_url=gate_url,
            report=self.said.append,
        )

    def stop(self) -> bool:
        return skypilot_server.stop_server(self.place, self.said.append)

    def bystander(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """A process that does nothing, with these words in its command line."""
        sleeps = [sys.executable, "-c", "import time; time.sleep(300)", *words]
        process = subprocess.Popen(sleeps, env=environment or None, start_new_session=True)
        self.bystanders.append(process)
        # A program that has just begun has no words yet, and may be anyone's.
        deadline_s = time.monotonic() + 30
        while psutil.Process(process.pid).cmdline() != sleeps:
            assert time.monotonic() < deadline_s, "it does not begin"
        return process

    @property
    def gate_address(self) -> Path:
        """The file with the address that the server contacts."""
        return self.place.home / ".sky/holdfast-gate"

    @property
    def pid(self) -> int:
        """The number of the server that runs."""
        server = process.running_server(self.place)
        assert server
        return server.pid

    @property
    def told(self) -> str:
        return "\n".join(self.said)


def is_alive(process: psutil.Process) -> bool:
    """Whether it still does anything. Without an init that reaps orphans, dead processes stay in the list."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False  # It ended between the two questions.


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerDirHarness]:
    """A home directory, a server's directory, and a fake interpreter with SkyPilot."""
    person = tmp_path / "person"
    person.mkdir()
    monkeypatch.setenv("HOME", str(person))
    place = ServerDir(tmp_path / "skypilot")
    harness = ServerDirHarness(person, place, FakeInterpreter(tmp_path / "understudy"), free_port())
    yield harness
    for bystander in harness.bystanders:
        bystander.kill()
        bystander.wait()
    end_all(place.home)
