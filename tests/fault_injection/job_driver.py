"""Runs a job: forks ranks, crashes them, ends them as torchrun would, reads their output."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fake_s3 import FakeS3
from fault_injection.crash_points import read_reached
from fault_injection.fault_schedule import AttemptPlan
from fault_injection.fork_server import ForkServer, RankSpec
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.protocol.reports import Report, ReportKind
from support.cloud_servers import FAKE_CLOUDS
from support.live_service import free_port
from worker.support.run_driver import RunDriver
from worker.support.s3_servers import BUCKET, credentials
from worker.support.stores import MemoryStore

TRAINING_SCRIPT: Final = str(Path(__file__).with_name("training_script.py"))
TOTAL: Final = 36
"""Steps: six passes over the data."""
EVERY: Final = "4 steps"
ATTEMPT_TIMEOUT_S: Final = 240.0
"""Timeout of one attempt. An attempt takes less than a twentieth of it, unless a rank hangs."""
KEPT: Final = 2
"""Number of retained checkpoints."""
FOREVER: Final = float("inf")

Logbook = Mapping[int, list[str]]
"""A rank's log after each step: samples, digests of weights and moments, and more."""


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended."""

    codes: list[int]
    """Exit codes of the ranks; -n for one that was killed by signal n."""
    reached: list[str]
    """Descriptions of the crash points that were reached."""

    @property
    def is_finished(self) -> bool:
        """Whether the training is complete."""
        return not any(self.codes)


@dataclass
class Job(RunDriver):
    """A job whose ranks are forked by a fork server."""

    every: str = EVERY
    kind: str = "ddp"
    s3: FakeS3 | None = None
    """The S3 server with its store; None: a directory."""
    protocol: str = "s3"
    """URL scheme of the store on the server: that of S3 or of another cloud."""
    results: list[AttemptResult] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """The environment that a launcher sets for the current attempt."""
        store: dict[str, str] = {}
        if self.s3:
            cloud = FAKE_CLOUDS.get(self.protocol)
            known = cloud(self.s3).variables if cloud else credentials(self.s3.endpoint)
            store = {**known, "HOLDFAST_STORE": f"{self.protocol}://{BUCKET}/runs"}
        settings = {"HOLDFAST_KEEP": str(KEPT), "LOGBOOK_DIR": str(self.path / "logbooks")}
        return {**super().environment(), **store, **settings}

    def run(self, fork_server: ForkServer, plan: AttemptPlan) -> AttemptResult:
        """Run the next attempt until all of its processes have ended."""
        self.attempt += 1
        self.run_dir.mkdir(parents=True)
        (self.path / "logbooks").mkdir(exist_ok=True)
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        env = {**self.environment(), **rendezvous, "WORLD_SIZE": str(plan.ranks)}
        if plan.waits_for_saves:
            env["WAIT_FOR_SAVES"] = "yes"
        specs = [
            RankSpec(
                [TRAINING_SCRIPT, self.kind, str(TOTAL)],
                {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                log=str(self.run_dir / f"early-{rank}.log"),
                reached=str(self._reached_file(rank)),
                points=plan.points_of(rank),
            )
            for rank in range(plan.ranks)
        ]
        if self.s3:
            for fault in plan.store_faults:
                self.s3.fault(**fault)
        codes = _until_all_ended(fork_server, fork_server.fork(specs), plan.grace_s)
        if self.s3:
            self.s3.calm()
        reached = [
            words for rank in range(plan.ranks) for words in read_reached(self._reached_file(rank))
        ]
        self.results.append(AttemptResult(codes, reached))
        return self.results[-1]

    def objects(self) -> dict[str, bytes]:
        """The objects in the store, read without faults."""
        if self.s3:
            keys = self.s3.keys(BUCKET, "runs/lesson/")
            return {key.removeprefix("runs/lesson/"): self.s3.read(BUCKET, key) for key in keys}
        top = self.path / "store" / "lesson"
        files = [file for file in top.rglob("*") if file.is_file() and file.name != ".lock"]
        return {file.relative_to(top).as_posix(): file.read_bytes() for file in files}

    def repository(self) -> CheckpointRepository:
        """A copy of the current checkpoints."""
        return CheckpointRepository(MemoryStore(self.objects()))

    def logbook(self, attempt: int, rank: int) -> Logbook:
        """The log of a rank in an attempt, by step, without an incomplete last line."""
        return {int(step): words for step, *words in self._lines(attempt, rank)[1:]}

    def initial_state(self, rank: int) -> list[str]:
        """The state with which a rank of the current attempt started; empty if it did not.

        The step, and digests of weights and moments.
        """
        lines = self._lines(self.attempt, rank)
        return [lines[0][0], *lines[0][2:]] if lines else []

    def _lines(self, attempt: int, rank: int) -> list[list[str]]:
        file = self.path / "logbooks" / f"{attempt}-{rank}"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [line.split() for line in lines]

    def attempt_reports(self, kind: ReportKind) -> list[Report]:
        """The reports of a kind from the current attempt."""
        return [report for report in self.reports(kind) if report.attempt == self.attempt]

    def output(self) -> str:
        """The output of all ranks of the current attempt."""
        logs = [*self.run_dir.glob("early-*.log"), *self.run_dir.glob("ranks/*.log")]
        return "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in logs)

    def _reached_file(self, rank: int) -> Path:
        return self.run_dir / f"struck-{rank}"


def _until_all_ended(fork_server: ForkServer, pids: list[int], grace_s: float) -> list[int]:
    """Wait for all ranks and return their exit codes.

    Once a rank has failed, the others are terminated, and killed after the grace period.
    """
    codes: dict[int, int] = {}
    until_s = time.monotonic() + ATTEMPT_TIMEOUT_S
    is_over = False
    while len(codes) < len(pids):
        result = fork_server.ended(max(0.0, until_s - time.monotonic()))
        if result:
            pid, codes[pid] = result
        else:
            _signal([pid for pid in pids if pid not in codes], signal.SIGKILL)
            assert is_over, f"ranks hang; others ended with {codes}"
            until_s = time.monotonic() + ATTEMPT_TIMEOUT_S
        if not is_over and any(codes.values()):
            is_over = True
            _signal([pid for pid in pids if pid not in codes], signal.SIGTERM)
            until_s = time.monotonic() + grace_s
    return [codes[pid] for pid in pids]


def _signal(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to ranks.

    An exited rank stays a zombie until the fork server has reaped it, so that its process id is not reused.
    """
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
