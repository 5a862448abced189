"""A real service in a process of its own, spoken to with the real command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import psutil

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny_gpt"
PATIENCE_S = 120.0


class Service:
    """One home folder, the service over it, and its command line."""

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
            "OMP_NUM_THREADS": "1",
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.words: tuple[str, ...] = ("serve",)
        """The command that puts it up."""
        self.reach: tuple[str, ...] = ()
        """Words before a command that have it run where the service is."""

    def start(self) -> None:
        with (self.folder / "service.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.reach, HOLDFAST, *self.words, "--port", str(self.port)],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        self.wait(self._answers, "the service answers")

    def end(self, by: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(by)
        self.process.wait(timeout=30)
        self.process = None

    def cli(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.reach, HOLDFAST, *words],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

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
        """The job once `reached` is true of it."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found.append(self._job(job_id))
            return reached(found[-1])

        self.wait(look, f"job {job_id} gets there")
        return found[-1]

    def _answers(self) -> bool:
        if self.reach:
            return self.cli("ps").returncode == 0
        try:
            return httpx2.get(f"{self.environment['HOLDFAST_URL']}/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def _job(self, job_id: str) -> dict[str, Any]:
        """A job now: without the command line where that can be, which takes a second of a core at each start."""
        if self.reach:
            time.sleep(0.5)
        else:
            url = f"{self.environment['HOLDFAST_URL']}/v1/jobs/{job_id}"
            answer = httpx2.get(url, timeout=PATIENCE_S)
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
        shown: dict[str, Any] = self.json("show", job_id)
        return shown

    def ended(self, job_id: str) -> dict[str, Any]:
        return self.until(job_id, lambda job: job["state"] in {"succeeded", "failed", "cancelled"})

    def wait(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            log = (self.folder / "service.log").read_text()[-2000:]
            assert time.monotonic() < deadline, f"waited too long until {what}\n{log}"
            time.sleep(0.1)

    def sweep(self) -> None:
        """End what a failed test left behind: everything that carries this home's mark."""
        for process in psutil.process_iter():
            try:
                mark = process.environ().get("HOLDFAST_LAUNCH", "")
                if mark.startswith(str(self.home)):
                    process.kill()
            except psutil.Error:
                continue


class WithSkyPilot(Service):
    """A service that is put up together with SkyPilot."""

    def __init__(self, folder: Path, python: Path) -> None:
        super().__init__(folder)
        self.sky_home = self.home / "skypilot"
        self.sky_port = free_port()
        person = folder / "person"
        person.mkdir()
        self.environment |= {"HOME": str(person), "HOLDFAST_SKYPILOT_PYTHON": str(python)}
        self.words = ("up", "--skypilot-port", str(self.sky_port))

    def sky(self) -> dict[str, Any]:
        """What the service tells of SkyPilot."""
        told = httpx2.get(f"http://127.0.0.1:{self.port}/v1/launchers").json()
        found: dict[str, Any] = next(item for item in told if item["engine"] == "skypilot")
        return found

    @property
    def sky_pid(self) -> int:
        """The process of SkyPilot's server, by the service's own record."""
        record: dict[str, int] = json.loads((self.sky_home / "holdfast-server.json").read_text())
        return record["pid"]


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
