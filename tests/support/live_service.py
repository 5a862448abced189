"""A real service in a separate process, used through the real command line."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import httpx2
import psutil
from support.fork_server import HOLDFAST, Forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_gpt"
PATIENCE_S = 240.0
"""Timeout of every wait.

Only a failing test reaches it; it must suffice on a machine with a load of 30.
"""


class Service:
    """A home directory, the service that runs on it, and its command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.port = free_port()
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")},
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_URL": f"http://127.0.0.1:{self.port}",
            "HOLDFAST_LOOK_EVERY_S": "0.3",
            "HOLDFAST_LOCAL_PROVISION_S": "0.2",
            "HOLDFAST_RESTART_S": "0.2",
            "OMP_NUM_THREADS": "1",
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.words: tuple[str, ...] = ("serve",)
        """The command that starts the service."""
        self.reach: tuple[str, ...] = ()
        """Command prefix that runs a command on the host of the service."""
        self.forks = True
        """Whether commands are forked. Commands on other hosts are started as real programs."""

    def start(self) -> None:
        with (self.folder / "service.log").open("ab") as log:
            self.process = self.popen(*self.words, "--port", str(self.port), stdout=log, stderr=log)
        self.wait(self._answers_or_ended, "the service answers")
        assert self.process.poll() is None, f"the service has ended\n{self._log()}"

    def end(self, by: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(by)
        self.process.wait(timeout=PATIENCE_S)
        self.process = None

    def popen(
        self, *words: str, stdout: IO[bytes], stderr: IO[bytes], **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a command."""
        given = {**self.environment, **environment}
        if self.forks and not self.reach:
            return Forked(
                "service",
                [HOLDFAST, *words],
                cwd=self.folder,
                env=given,
                stdout=stdout,
                stderr=stderr,
            )
        return subprocess.Popen(
            [*self.reach, HOLDFAST, *words],
            cwd=self.folder,
            env=given,
            stdout=stdout,
            stderr=stderr,
        )

    def cli(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command and return its output and exit code."""
        with TemporaryFile() as stdout, TemporaryFile() as stderr:
            process = self.popen(*words, stdout=stdout, stderr=stderr, **environment)
            code = process.wait(timeout=PATIENCE_S)
            stdout.seek(0)
            stderr.seek(0)
            printed = stdout.read().decode(), stderr.read().decode()
        return subprocess.CompletedProcess([HOLDFAST, *words], code, *printed)

    def json(self, *words: str) -> Any:
        answer = self.cli(*words, "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def submit(self, **task: Any) -> str:
        file = self.folder / "job.yaml"
        file.write_text(json.dumps({"resources": {"infra": "local"}, **task}))
        job_id: str = self.json("submit", "--force", str(file))["id"]
        return job_id

    def until(self, job_id: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until `reached` holds for the job, and return the job."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found.append(self._job(job_id))
            return reached(found[-1])

        def seen() -> str:
            return f"{found[-1]}\n{self.cli('logs', job_id).stdout[-3000:]}"

        self.wait(look, f"job {job_id} gets there", seen)
        return found[-1]

    def get(self, path: str, timeout_s: float = PATIENCE_S) -> httpx2.Response:
        """Send a request to the API.

        Certificates, which plain HTTP does not need, would take 40 ms of CPU time to load.
        """
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx2.get(url, timeout=timeout_s, verify=False)

    def _answers_or_ended(self) -> bool:
        return self._answers() or (self.process is not None and self.process.poll() is not None)

    def _answers(self) -> bool:
        if self.reach:
            return self.cli("ps").returncode == 0
        try:
            return self.get("/readyz", timeout_s=5.0).status_code == 200
        except httpx2.TransportError:
            return False

    def _job(self, job_id: str) -> dict[str, Any]:
        """Read a job, over HTTP if possible: the command line takes a second of CPU time to start."""
        if self.reach:
            time.sleep(0.5)
        else:
            answer = self.get(f"/v1/jobs/{job_id}")
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
        shown: dict[str, Any] = self.json("show", job_id)
        return shown

    def ended(self, job_id: str) -> dict[str, Any]:
        return self.until(job_id, lambda job: job["state"] in {"succeeded", "failed", "cancelled"})

    def wait(self, true: Callable[[], bool], what: str, seen: Callable[[], str] = str) -> None:
        """Wait until `true` holds; the failure of a test shows `seen`, and the end of the service's log."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, (
                f"waited too long until {what}\n{seen()}\n{self._log()}"
            )
            time.sleep(0.1)

    def _log(self) -> str:
        return (self.folder / "service.log").read_text()[-2000:]

    def sweep(self) -> None:
        """Kill all processes of launches of this home, which a failed test may have left behind."""
        for process in psutil.process_iter():
            try:
                mark = process.environ().get("HOLDFAST_LAUNCH", "")
                if mark.startswith(str(self.home)):
                    process.kill()
            except psutil.Error:
                continue


class WithSkyPilot(Service):
    """A service that is started together with SkyPilot."""

    def __init__(self, folder: Path, python: Path) -> None:
        super().__init__(folder)
        self.sky_home = self.home / "skypilot"
        self.sky_port = free_port()
        user_home = folder / "person"
        user_home.mkdir()
        self.environment |= {"HOME": str(user_home), "HOLDFAST_SKYPILOT_PYTHON": str(python)}
        self.forks = False
        self.words = ("up", "--skypilot-port", str(self.sky_port))

    def sky(self) -> dict[str, Any]:
        """Return the information of the service about SkyPilot."""
        body = self.get("/v1/launchers").json()
        found: dict[str, Any] = next(item for item in body if item["engine"] == "skypilot")
        return found

    @property
    def sky_pid(self) -> int:
        """Process id of SkyPilot's server, as recorded by the service."""
        record: dict[str, int] = json.loads((self.sky_home / "holdfast-server.json").read_text())
        return record["pid"]


def free_port() -> int:
    """Return a loopback port without a listener.

    The port is below the range of outgoing connections, which could otherwise occupy it before the test
    listens.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
