"""A stage for whole runs: starts ranks as torchrun would, or the wrapper as a launcher would, and reads what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.telemetry.spool import read_spool, spool_file, spooled_attempts
from support.fork_server import ENTRY, Forked
from support.live_service import free_port

DDP_SCRIPT = str(Path(__file__).parents[1] / "scripts/ddp.py")
TOTAL = "40"
"""Steps of a lesson that comes to its end."""
TIMEOUT_S = 120

STARTED: list[subprocess.Popen[Any]] = []
"""Every wrapper and rank of the test under way; those that a failed test left are ended with it."""


@dataclass
class RunDriver:
    """One job: its store, its spool and its attempts, in a directory."""

    path: Path
    every: str = "10 steps"
    extra: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 0
    forks: bool = True
    """Whether wrappers, and what they start, are forked. Elsewhere they are real programs."""

    def environment(self) -> dict[str, str]:
        """What a launcher gives to the attempt that is under way."""
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "SKYPILOT_"))
        }
        return {
            **clean,
            "OMP_NUM_THREADS": "1",
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
            "PYTHONFAULTHANDLER": "1",
            "HOLDFAST_JOB": "lesson",
            "HOLDFAST_ATTEMPT": str(self.attempt),
            "HOLDFAST_EPOCH": str(self.attempt),
            "HOLDFAST_STORE": f"file://{self.path}/store",
            "HOLDFAST_SPOOL": str(self.path / "spool"),
            "HOLDFAST_RUN_DIR": str(self.run_dir),
            "HOLDFAST_EVERY": self.every,
            "LESSON_RESULT": str(self.path / "result"),
            **self.extra,
        }

    @property
    def run_dir(self) -> Path:
        """The run directory of the attempt that is under way."""
        return self.path / f"run-{self.attempt}"

    def start_ranks(self, ranks: int, *args: str) -> list[Forked]:
        """The next attempt, started as torchrun does it: processes that know their rank and where to meet."""
        self.attempt += 1
        self.run_dir.mkdir(parents=True)
        meet = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        started = [
            Forked(
                "worker",
                ["-m", ENTRY, *args],
                env={**self.environment(), **meet, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(ranks)
        ]
        STARTED.extend(started)
        return started

    def run_ranks(self, ranks: int, *args: str) -> list[int]:
        """Exit codes of the ranks of a whole attempt."""
        return [process.wait(TIMEOUT_S) for process in self.start_ranks(ranks, *args)]

    def start_wrapper(self, *args: str) -> subprocess.Popen[str]:
        """The next attempt, started as a launcher does it."""
        return self._start("-m", "holdfast_worker", "run", *args)

    def start_python(self, program: str, *args: str) -> subprocess.Popen[str]:
        """The next attempt, by a wrapper of the test's own."""
        return self._start("-c", program, *args)

    def _start(self, *words: str) -> subprocess.Popen[str]:
        self.attempt += 1
        self.run_dir.mkdir(parents=True, exist_ok=True)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = self.environment()
        wrapper = (
            Forked("worker", words, env=env, **pipes)
            if self.forks
            else subprocess.Popen([sys.executable, *words], env=env, **pipes)
        )
        STARTED.append(wrapper)
        return wrapper

    def run_wrapper(self, *args: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a whole attempt."""
        wrapper = self.start_wrapper(*args)
        out, err = wrapper.communicate(timeout=TIMEOUT_S)
        return wrapper.returncode, out, err

    @property
    def result(self) -> str:
        """Digest of the final weights, as the script saw them."""
        return (self.path / "result").read_text()

    def reports(self, kind: ReportKind | None = None) -> list[Report]:
        """What the worker said, over all attempts; of one kind, if given."""
        spool = self.path / "spool"
        reported = [
            report
            for attempt in spooled_attempts(spool)
            for report, _ in read_spool(spool_file(spool, attempt))
        ]
        return [report for report in reported if kind in (None, report.kind)]

    def log(self, rank: int) -> str:
        """What a rank of the attempt under way wrote."""
        return (self.run_dir / "ranks" / f"rank-{rank}.log").read_text()


def end_all() -> None:
    """End what was started and still runs. The ranks of a wrapper go with it."""
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
        for stream in (process.stdout, process.stderr):
            if stream:  # Of one that a test itself has killed.
                stream.close()
    STARTED.clear()


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when another process has made it true."""
    pause = threading.Event()
    for _ in range(TIMEOUT_S * 50):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it never came")
