"""Driver of whole runs: starts ranks like torchrun or the wrapper like a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.telemetry.spool import read_spool, spool_file, spooled_attempts
from support.fork_server import ENTRY, Forked
from support.live_service import free_port

DDP_SCRIPT = str(Path(__file__).parents[1] / "scripts/ddp.py")
TOTAL = "40"
"""Steps of a training that ends."""
TIMEOUT_S = 240
"""Timeout of every wait.

Only a failing test reaches it; it must suffice on a machine with a load of 30.
"""

WATCHED = """
from holdfast_worker.__main__ import main
from holdfast_worker.watchdog.watchdog import Watchdog


def poll(self, poll=Watchdog.poll):
    poll(self)
    if len(self._connected) == (1 if self._node else self._nodes - 1):
        (self._run_dir.path / "connected").touch()


Watchdog.poll = poll
main()
"""
"""The wrapper, which shows that its watchdog is connected to those of other nodes: of all of them on node 0."""

STARTED: list[subprocess.Popen[Any]] = []
"""All wrappers and ranks of the current test, which are killed at its end."""


@dataclass
class RunDriver:
    """One job with its store, spool and attempts, in a directory."""

    path: Path
    every: str = "10 steps"
    extra: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 0
    forks: bool = True
    """Whether wrappers and their children are forked instead of started as programs."""
    workdir: Path | None = None
    """Working directory of wrappers; None: that of the tests."""

    def environment(self) -> dict[str, str]:
        """Environment of the current attempt, as a launcher sets it."""
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
            # Each failure ends the attempt, unless a test is about restarts.
            "HOLDFAST_MAX_RESTARTS": "0",
            "LESSON_RESULT": str(self.path / "result"),
            **self.extra,
        }

    @property
    def run_dir(self) -> Path:
        """Run directory of the current attempt."""
        return self.path / f"run-{self.attempt}"

    def start_ranks(self, ranks: int, *args: str) -> list[Forked]:
        """Start the ranks of the next attempt with the environment that torchrun sets."""
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
        """Run a whole attempt and return the exit codes of its ranks."""
        return [process.wait(TIMEOUT_S) for process in self.start_ranks(ranks, *args)]

    def start_wrapper(self, *args: str) -> subprocess.Popen[str]:
        """Start the next attempt like a launcher."""
        return self._start("-m", "holdfast_worker", "run", *args)

    def start_watched(self, *args: str) -> subprocess.Popen[str]:
        """Start the next attempt like a launcher, with a wrapper that shows when it is connected to other nodes."""
        return self.start_python(WATCHED, "run", *args)

    def start_python(self, program: str, *args: str) -> subprocess.Popen[str]:
        """Start the next attempt with a Python program as its wrapper."""
        return self._start("-c", program, *args)

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        self.attempt += 1
        self.run_dir.mkdir(parents=True, exist_ok=True)
        if self.workdir:
            self.workdir.mkdir(parents=True, exist_ok=True)
        pipes: dict[str, Any] = {
            "cwd": self.workdir,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        env = self.environment()
        wrapper = (
            Forked("worker", arguments, env=env, **pipes)
            if self.forks
            else subprocess.Popen([sys.executable, *arguments], env=env, **pipes)
        )
        STARTED.append(wrapper)
        return wrapper

    def run_wrapper(self, *args: str) -> tuple[int, str, str]:
        """Run a whole attempt and return its exit code, stdout and stderr."""
        wrapper = self.start_wrapper(*args)
        out, err = wrapper.communicate(timeout=TIMEOUT_S)
        return wrapper.returncode, out, err

    @property
    def is_connected(self) -> bool:
        """Whether a watched wrapper was connected to other nodes in this attempt."""
        return (self.run_dir / "connected").exists()

    @property
    def result(self) -> str:
        """Digest of the final weights, as the script wrote it."""
        return (self.path / "result").read_text()

    def reports(self, kind: ReportKind | None = None) -> list[Report]:
        """Reports of all attempts, optionally of one kind."""
        spool = self.path / "spool"
        reported = [
            report
            for attempt in spooled_attempts(spool)
            for report, _ in read_spool(spool_file(spool, attempt))
        ]
        return [report for report in reported if kind in (None, report.kind)]

    def log(self, rank: int) -> str:
        """Output of a rank of the current attempt."""
        return (self.run_dir / "ranks" / f"rank-{rank}.log").read_text()


def end_all() -> None:
    """End all started processes that still run; ranks end with their wrapper."""
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
        for stream in (process.stdout, process.stderr):
            if stream:  # None after a test killed the process itself.
                stream.close()
    STARTED.clear()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until another process makes a condition true."""
    pause = threading.Event()
    for _ in range(TIMEOUT_S * 50):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it never came")


def read_until(wrapper: subprocess.Popen[str], message: str) -> str:
    """What a wrapper logs, up to the line with `message`."""
    assert wrapper.stderr
    log = ""
    for line in wrapper.stderr:
        log += line
        if message in line:
            return log
    raise AssertionError(f"the wrapper ended without {message!r}: {log}")


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended, whether or not its parent has reaped it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
