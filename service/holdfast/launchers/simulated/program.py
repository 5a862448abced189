"""Simulates in advance what a training program does and reports in one placement.

Pure; times are seconds since the nodes were ready. The program behaves like the worker: it saves periodically, uploads
in the background, and exits on notice with a last checkpoint if there is time.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import Json, ReportKind

from holdfast.domain.events import LeftReason


@dataclass(frozen=True, slots=True)
class Failure:
    """A bug in the program: it raises after step `step`."""

    step: int
    """0: before training begins, like a missing module."""
    exit_code: int = Exit.FAILED
    """75: the program exits as after a notice, but without one."""
    times: int = 1
    """Number of times in one launch."""
    detail: str = "RuntimeError: simulated failure"


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedProgram:
    """Parameters of a training program."""

    total_steps: int = 2_000
    step_s: float = 1.0
    setup_s: float = 45.0
    """From ready nodes until the program has started."""
    restore_s: float = 15.0
    """From the start of the program until the first step."""
    checkpoint_every_steps: int = 200
    stall_s: float = 1.5
    """Time that each checkpoint blocks training."""
    upload_s: float = 20.0
    """From the end of the stall until the checkpoint is durable; uploads run one at a time."""
    checkpoint_bytes: int = 1_500_000_000
    progress_every_steps: int = 10
    loss_scale_steps: float = 400
    """Number of steps in which the loss falls to about a third."""
    loss_floor: float = 1.0
    """The loss that training approaches."""
    loss_seed: int = 0
    """Programs with the same one deviate equally from their curves."""
    loss_noise: float = 0.0
    """Maximum relative deviation of a step's loss from its curve.
    It is the same when the step is repeated."""
    tokens_per_step: int = 0
    """Reported as tokens per second, with a small variation by step; 0: not reported."""
    ranks_per_node: int = 8
    failure: Failure | None = None
    manifest: Mapping[str, Json] | None = None
    """The run manifest to report; None: no manifest."""


@dataclass(frozen=True, slots=True)
class SimulatedReport:
    """A report without number and date."""

    at_s: float
    kind: ReportKind
    body: Mapping[str, Json]
    snapshot_s: float | None = None
    """When the state of a checkpoint was captured; None for other reports."""


@dataclass(frozen=True, slots=True)
class SimulatedCheckpoint:
    """A durable checkpoint."""

    step: int
    name: str


@dataclass(frozen=True, slots=True)
class SimulatedAttempt:
    """A placement from ready nodes until the end of its program."""

    reports: tuple[SimulatedReport, ...]
    ended_s: float
    exit_code: int | None
    """Exit code of the program; None: it was killed."""
    detail: str = ""

    @property
    def checkpoint(self) -> SimulatedCheckpoint | None:
        """The newest durable checkpoint of this placement; None without one."""
        bodies = (report.body for report in self.reports if report.snapshot_s is not None)
        return max(
            (checkpoint_in(body) for body in bodies), key=lambda saved: saved.step, default=None
        )

    @property
    def trained(self) -> bool:
        """Whether a step was completed."""
        return any(report.kind == ReportKind.PROGRESS for report in self.reports)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptConditions:
    """Conditions of one placement."""

    attempt: int
    nodes: int
    checkpoint: SimulatedCheckpoint | None
    """The newest checkpoint in the store; None if there is none."""
    fails: bool
    """Whether the program's failure happens in this placement."""
    notice_s: float = math.inf
    """When the program is asked to exit."""
    deadline_s: float = math.inf
    """The deadline announced in the notice."""
    kill_s: float = math.inf
    """When remaining processes are killed; may be before the announced deadline."""

    @property
    def start_step(self) -> int:
        """Number of steps completed before training begins."""
        return self.checkpoint.step if self.checkpoint else 0


def simulate_attempt(program: SimulatedProgram, met: AttemptConditions) -> SimulatedAttempt:
    """Simulate `program` under the conditions `met`."""
    run = _Run(program, met)
    ended_s, exit_code = run.execute()
    if ended_s > met.kill_s:
        return SimulatedAttempt(run.reports_until(met.kill_s), met.kill_s, None)
    detail = program.failure.detail if program.failure and exit_code not in _CLEAN_EXITS else ""
    return SimulatedAttempt(run.reports_until(ended_s), ended_s, exit_code, detail)


def checkpoint_in(body: Mapping[str, Json]) -> SimulatedCheckpoint:
    """Return the checkpoint that a report's body describes as durable."""
    step, name = body["step"], body["checkpoint"]
    assert isinstance(step, int)
    assert isinstance(name, str)
    return SimulatedCheckpoint(step, name)


def weights_sha256(step: int) -> str:
    """Return the digest of the weights after `step`; exact resume makes them depend only on it."""
    return hashlib.sha256(f"weights after {step} steps".encode()).hexdigest()


_CLEAN_EXITS: Final = frozenset({Exit.DONE, Exit.PREEMPTED})
_THROUGHPUT_SPREAD: Final = 0.04
"""Maximum relative deviation of tokens per second from their mean."""


@dataclass(slots=True)
class _Run:
    """State of the running program: a clock, a step, and an uplink for one checkpoint at a time."""

    program: SimulatedProgram
    conditions: AttemptConditions
    reports: list[SimulatedReport] = field(default_factory=list)
    now_s: float = 0.0
    step: int = 0
    saved_step: int = 0
    uplink_free_s: float = 0.0

    def execute(self) -> tuple[float, int]:
        """Return when and with which exit code the program ends unless it is killed."""
        program, met = self.program, self.conditions
        self.now_s = program.setup_s
        if met.notice_s < self.now_s:
            # Setup does not save checkpoints; it just ends.
            return met.notice_s, int(Exit.PREEMPTED)
        self._report(ReportKind.RESTORE_STARTED)
        if met.fails and program.failure and program.failure.step == 0:
            return self._fail(program.failure)
        self.step = self.saved_step = met.start_step
        self.now_s += program.restore_s
        self._report_start()
        while self.step < program.total_steps:
            if met.notice_s <= self.now_s:
                return self._exit_on_notice()
            if met.kill_s < self.now_s:
                break  # Later reports would not be received.
            self._advance()
            if met.fails and program.failure and self.step == program.failure.step:
                return self._fail(program.failure)
            if self.step % program.checkpoint_every_steps == 0 or self.step == program.total_steps:
                self._save()
        self.now_s = max(self.now_s, self.uplink_free_s)
        self._report_exit(LeftReason.FINISHED, Exit.DONE)
        return self.now_s, int(Exit.DONE)

    def reports_until(self, end_s: float) -> tuple[SimulatedReport, ...]:
        """Return the reports until `end_s`, in order; unfinished uploads are not reported."""
        until_end = (report for report in self.reports if report.at_s <= end_s)
        return tuple(sorted(until_end, key=lambda report: report.at_s))

    def _report_start(self) -> None:
        found = self.conditions.checkpoint
        if self.program.manifest is not None:
            self._report(ReportKind.RUN_DESCRIBED, manifest=dict(self.program.manifest))
        self._report(
            ReportKind.TRAINING_STARTED,
            step=self.step,
            total_steps=self.program.total_steps,
            world_size=self.conditions.nodes * self.program.ranks_per_node,
            restored_from=found.name if found else None,
            passed_over=[],
        )

    def _advance(self) -> None:
        self.now_s += self.program.step_s
        self.step += 1
        first_or_last = self.step in {self.conditions.start_step + 1, self.program.total_steps}
        if first_or_last or self.step % self.program.progress_every_steps == 0:
            self._report(ReportKind.PROGRESS, step=self.step, values=self._values())

    def _values(self) -> dict[str, Json]:
        values: dict[str, Json] = {"loss": self._loss}
        if tokens := self.program.tokens_per_step:
            pace = 1 + _THROUGHPUT_SPREAD * _noise("pace", self.conditions.attempt, self.step)
            values["tokens_per_s"] = round(pace * tokens / self.program.step_s)
        return values

    @property
    def _loss(self) -> float:
        program = self.program
        steady = program.loss_floor + 9.0 * math.exp(-self.step / program.loss_scale_steps)
        noise = _noise("loss", self.step, *([program.loss_seed] * (program.loss_seed != 0)))
        return round(steady * (1 + program.loss_noise * noise), 4)

    def _save(self) -> None:
        snapshot_s = self.now_s
        self.now_s += self.program.stall_s
        self.uplink_free_s = max(self.uplink_free_s, self.now_s) + self.program.upload_s
        self.saved_step = self.step
        body: dict[str, Json] = {
            "step": self.step,
            "checkpoint": f"step-{self.step:010d}-epoch-{self.conditions.attempt}",
            "size_bytes": self.program.checkpoint_bytes,
            "stall_ms": round(self.program.stall_s * 1000),
            "upload_ms": round((self.uplink_free_s - self.now_s) * 1000),
            "weights_sha256": weights_sha256(self.step),
            "metrics": {"loss": {"value": self._loss, "step": self.step}},
        }
        self.reports.append(
            SimulatedReport(self.uplink_free_s, ReportKind.CHECKPOINT_COMMITTED, body, snapshot_s)
        )

    def _exit_on_notice(self) -> tuple[float, int]:
        left_s = self.conditions.deadline_s - self.now_s
        self._report(ReportKind.PREEMPTION_NOTICED, step=self.step, left_s=round(left_s, 3))
        if self.saved_step < self.step:
            self._save()
        self.now_s = max(self.now_s, self.uplink_free_s)
        self._report_exit(LeftReason.PREEMPTED, Exit.PREEMPTED)
        return self.now_s, int(Exit.PREEMPTED)

    def _fail(self, failure: Failure) -> tuple[float, int]:
        left = failure.exit_code == Exit.PREEMPTED
        reason = LeftReason.PREEMPTED if left else LeftReason.FAILED
        self._report_exit(reason, failure.exit_code, failure.detail)
        return self.now_s, failure.exit_code

    def _report_exit(self, reason: LeftReason, exit_code: int, detail: str = "") -> None:
        self._report(
            ReportKind.WORKER_LEFT,
            step=self.step,
            reason=reason,
            exit_code=exit_code,
            detail=detail,
        )

    def _report(self, kind: ReportKind, **body: Json) -> None:
        self.reports.append(SimulatedReport(self.now_s, kind, body))


def _noise(*what: str | int) -> float:
    """Return a pseudorandom number from -1 to 1 that depends only on the arguments."""
    return zlib.crc32("/".join(map(str, what)).encode()) / 2**31 - 1
