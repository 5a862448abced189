"""Runs a job: forks its ranks, crashes them, ends them as torchrun would, and reads what they leave."""

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
from fault_injection.crash_points import words_of
from fault_injection.fault_schedule import AttemptPlan
from fault_injection.fork_server import ForkServer, RankSpec
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.protocol.reports import Report, ReportKind
from support.live_service import free_port
from worker.support.run_driver import RunDriver
from worker.support.s3_servers import BUCKET, credentials
from worker.support.stores import MemoryStore

TRAINING_SCRIPT: Final = str(Path(__file__).with_name("training_script.py"))
TOTAL: Final = 36
"""Steps: six passes over the data."""
EVERY: Final = "4 steps"
LONGEST_S: Final = 120.0
"""For one leg, however it ends. None takes a tenth of it, unless a rank waits for somebody who will never come."""
KEPT: Final = 2
"""Checkpoints that stay."""
FOREVER: Final = float("inf")

Logbook = Mapping[int, list[str]]
"""What a rank wrote down after each step: samples, digests of weights and moments, and more."""


@dataclass(frozen=True)
class AttemptResult:
    """How a leg ended."""

    codes: list[int]
    """Of the ranks; -n for one that was killed by signal n."""
    struck: list[str]
    """Reefs, in words."""

    @property
    def is_finished(self) -> bool:
        """Whether all training is done."""
        return not any(self.codes)


@dataclass
class Job(RunDriver):
    """A job whose ranks are forked by a fork server."""

    every: str = EVERY
    kind: str = "ddp"
    s3: FakeS3 | None = None
    """Its store; None: a directory."""
    landfalls: list[AttemptResult] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """What a launcher gives to the attempt that is under way."""
        store: dict[str, str] = {}
        if self.s3:
            store = {**credentials(self.s3.endpoint), "HOLDFAST_STORE": f"s3://{BUCKET}/runs"}
        rules = {"HOLDFAST_KEEP": str(KEPT), "CROSSING_LOGBOOK": str(self.path / "logbooks")}
        return {**super().environment(), **store, **rules}

    def run(self, fork_server: ForkServer, leg: AttemptPlan) -> AttemptResult:
        """The next attempt, from its start until nothing of it is left."""
        self.attempt += 1
        self.run_dir.mkdir(parents=True)
        (self.path / "logbooks").mkdir(exist_ok=True)
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        world = {**self.environment(), **meet, "WORLD_SIZE": str(leg.ranks)}
        if leg.is_patient:
            world["CROSSING_PATIENT"] = "yes"
        specs = [
            RankSpec(
                [TRAINING_SCRIPT, self.kind, str(TOTAL)],
                {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                log=str(self.run_dir / f"early-{rank}.log"),
                struck=str(self._struck(rank)),
                points=leg.of(rank),
            )
            for rank in range(leg.ranks)
        ]
        if self.s3:
            for fault in leg.weather:
                self.s3.fault(**fault)
        codes = _until_all_ended(fork_server, fork_server.fork(specs), leg.patience_s)
        if self.s3:
            self.s3.calm()
        struck = [words for rank in range(leg.ranks) for words in words_of(self._struck(rank))]
        self.landfalls.append(AttemptResult(codes, struck))
        return self.landfalls[-1]

    def objects(self) -> dict[str, bytes]:
        """What is in the store, past everything that a store can do wrong."""
        if self.s3:
            keys = self.s3.keys(BUCKET, "runs/lesson/")
            return {key.removeprefix("runs/lesson/"): self.s3.read(BUCKET, key) for key in keys}
        top = self.path / "store" / "lesson"
        files = [file for file in top.rglob("*") if file.is_file() and file.name != ".lock"]
        return {file.relative_to(top).as_posix(): file.read_bytes() for file in files}

    def archive(self) -> CheckpointRepository:
        """Checkpoints as they are now; what happens later is not seen."""
        return CheckpointRepository(MemoryStore(self.objects()))

    def logbook(self, attempt: int, rank: int) -> Logbook:
        """What a rank did in an attempt, by step. Nothing that it was cut off in."""
        return {int(step): words for step, *words in self._lines(attempt, rank)[1:]}

    def begun(self, rank: int) -> list[str]:
        """Step, and digests of weights and moments, that a rank of the attempt under way began with; empty if it never did."""
        lines = self._lines(self.attempt, rank)
        return [lines[0][0], *lines[0][2:]] if lines else []

    def _lines(self, attempt: int, rank: int) -> list[list[str]]:
        file = self.path / "logbooks" / f"{attempt}-{rank}"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [line.split() for line in lines]

    def told(self, kind: ReportKind) -> list[Report]:
        """What the attempt under way has reported of a kind."""
        return [report for report in self.reports(kind) if report.attempt == self.attempt]

    def words(self) -> str:
        """Everything that the ranks of the attempt under way wrote."""
        logs = [*self.run_dir.glob("early-*.log"), *self.run_dir.glob("ranks/*.log")]
        return "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in logs)

    def _struck(self, rank: int) -> Path:
        return self.run_dir / f"struck-{rank}"


def _until_all_ended(fork_server: ForkServer, pids: list[int], patience_s: float) -> list[int]:
    """Exit codes. Once a rank has ended with another than 0, the others are asked to end, and then made to."""
    codes: dict[int, int] = {}
    until_s = time.monotonic() + LONGEST_S
    is_over = False
    while len(codes) < len(pids):
        result = fork_server.ended(max(0.0, until_s - time.monotonic()))
        if result:
            pid, codes[pid] = result
        else:
            _signal([pid for pid in pids if pid not in codes], signal.SIGKILL)
            assert is_over, f"ranks hang; others ended with {codes}"
            until_s = time.monotonic() + LONGEST_S
        if not is_over and any(codes.values()):
            is_over = True
            _signal([pid for pid in pids if pid not in codes], signal.SIGTERM)
            until_s = time.monotonic() + patience_s
    return [codes[pid] for pid in pids]


def _signal(pids: list[int], number: signal.Signals) -> None:
    """A rank that has ended is not gone before the fork server has seen it; no other process has its number."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
