"""What a training program does and says in one placement, rehearsed in advance.

Pure and in seconds since the nodes were ready. It behaves as the worker does: saves on a cadence, uploads behind the
training, leaves on notice with a last checkpoint if there is time, and says so.
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
    """A bug in the program: it raises when it has finished step `step`."""

    step: int
    """0: before training begins, as a missing module would."""
    exit_code: int = Exit.FAILED
    """75: it leaves as if it had been told to, though nobody has."""
    times: int = 1
    """How often in one launch."""
    detail: str = "RuntimeError: simulated failure"


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedProgram:
    """Figures of a training program."""

    total_steps: int = 2_000
    step_s: float = 1.0
    setup_s: float = 45.0
    """From ready nodes until the program is up."""
    restore_s: float = 15.0
    """From there until the first step begins."""
    checkpoint_every_steps: int = 200
    stall_s: float = 1.5
    """Training stands still for so long at each checkpoint."""
    upload_s: float = 20.0
    """From the end of the stall until the checkpoint is durable; one at a time."""
    checkpoint_bytes: int = 1_500_000_000
    progress_every_steps: int = 10
    loss_scale_steps: float = 400
    """The loss falls to a third about every so many steps."""
    loss_noise: float = 0.0
    """How far one step's loss lies from the curve, at most, as a share of it. It is the same however often the step is made."""
    tokens_per_step: int = 0
    """Told as tokens a second, from step to step a little more or less; 0: nothing is told of them."""
    ranks_per_node: int = 8
    failure: Failure | None = None
    manifest: Mapping[str, Json] | None = None
    """What it says that it comes from; None: it says nothing."""


@dataclass(frozen=True, slots=True)
class Said:
    """A report before it has a number and a date."""

    at_s: float
    kind: ReportKind
    body: Mapping[str, Json]
    snapshot_s: float | None = None
    """When the state of a checkpoint was taken; None for other reports."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A durable checkpoint."""

    step: int
    name: str


@dataclass(frozen=True, slots=True)
class SimulatedAttempt:
    """One placement, from its nodes until its program is gone."""

    said: tuple[Said, ...]
    ended_s: float
    exit_code: int | None
    """None: it was killed."""
    detail: str = ""

    @property
    def saved(self) -> Saved | None:
        """The newest checkpoint that this placement made durable; None without one."""
        bodies = (said.body for said in self.said if said.snapshot_s is not None)
        return max((saved_in(body) for body in bodies), key=lambda saved: saved.step, default=None)

    @property
    def trained(self) -> bool:
        """True when a step was finished."""
        return any(said.kind == ReportKind.PROGRESS for said in self.said)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptConditions:
    """What a placement meets."""

    attempt: int
    nodes: int
    found: Saved | None
    """The newest checkpoint in the store; None when there is none."""
    fails: bool
    """True when the program's failure happens in this placement."""
    notice_s: float = math.inf
    """When it is told to leave."""
    deadline_s: float = math.inf
    """When it is told that it will be killed."""
    kill_s: float = math.inf
    """When whatever still runs is killed; before the deadline if somebody was in a hurry."""

    @property
    def start_step(self) -> int:
        """Steps that are behind it when training begins."""
        return self.found.step if self.found else 0


def simulate_attempt(program: SimulatedProgram, met: AttemptConditions) -> SimulatedAttempt:
    """What `program` does under the circumstances `met`."""
    run = _Run(program, met)
    ended_s, exit_code = run.play()
    if ended_s > met.kill_s:
        return SimulatedAttempt(run.heard_until(met.kill_s), met.kill_s, None)
    detail = program.failure.detail if program.failure and exit_code not in _LEFT_WELL else ""
    return SimulatedAttempt(run.heard_until(ended_s), ended_s, exit_code, detail)


def saved_in(body: Mapping[str, Json]) -> Saved:
    """The checkpoint that the body of a report calls durable."""
    step, name = body["step"], body["checkpoint"]
    assert isinstance(step, int)
    assert isinstance(name, str)
    return Saved(step, name)


def weights_sha256(step: int) -> str:
    """Digest of the weights after `step`: resume is exact, so nothing else tells."""
    return hashlib.sha256(f"weights after {step} steps".encode()).hexdigest()


_LEFT_WELL: Final = frozenset({Exit.DONE, Exit.PREEMPTED})
_PACE_SPREAD: Final = 0.04
"""How far tokens a second lie from their mean, at most, as a share of it."""


@dataclass(slots=True)
class _Run:
    """The program as it runs: a clock, a step, and an uplink that takes one checkpoint at a time."""

    program: SimulatedProgram
    met: AttemptConditions
    said: list[Said] = field(default_factory=list)
    now_s: float = 0.0
    step: int = 0
    saved_step: int = 0
    uplink_free_s: float = 0.0

    def play(self) -> tuple[float, int]:
        """When and with which exit code it ends, if nobody kills it."""
        program, met = self.program, self.met
        self.now_s = program.setup_s
        if met.notice_s < self.now_s:
            # Setup knows of no checkpoints; it simply ends.
            return met.notice_s, int(Exit.PREEMPTED)
        self._say(ReportKind.RESTORE_STARTED)
        if met.fails and program.failure and program.failure.step == 0:
            return self._fail(program.failure)
        self.step = self.saved_step = met.start_step
        self.now_s += program.restore_s
        self._begin()
        while self.step < program.total_steps:
            if met.notice_s <= self.now_s:
                return self._leave()
            if met.kill_s < self.now_s:
                break  # Nobody hears what it would do from here on.
            self._advance()
            if met.fails and program.failure and self.step == program.failure.step:
                return self._fail(program.failure)
            if self.step % program.checkpoint_every_steps == 0 or self.step == program.total_steps:
                self._save()
        self.now_s = max(self.now_s, self.uplink_free_s)
        self._left(LeftReason.FINISHED, Exit.DONE)
        return self.now_s, int(Exit.DONE)

    def heard_until(self, end_s: float) -> tuple[Said, ...]:
        """What was said until `end_s`, in order; an upload that was not through by then is not told."""
        said = (said for said in self.said if said.at_s <= end_s)
        return tuple(sorted(said, key=lambda said: said.at_s))

    def _begin(self) -> None:
        found = self.met.found
        if self.program.manifest is not None:
            self._say(ReportKind.RUN_DESCRIBED, manifest=dict(self.program.manifest))
        self._say(
            ReportKind.TRAINING_STARTED,
            step=self.step,
            total_steps=self.program.total_steps,
            world_size=self.met.nodes * self.program.ranks_per_node,
            restored_from=found.name if found else None,
            passed_over=[],
        )

    def _advance(self) -> None:
        self.now_s += self.program.step_s
        self.step += 1
        first_or_last = self.step in {self.met.start_step + 1, self.program.total_steps}
        if first_or_last or self.step % self.program.progress_every_steps == 0:
            self._say(ReportKind.PROGRESS, step=self.step, values=self._values())

    def _values(self) -> dict[str, Json]:
        told: dict[str, Json] = {"loss": self._loss}
        if tokens := self.program.tokens_per_step:
            pace = 1 + _PACE_SPREAD * _wobble("pace", self.met.attempt, self.step)
            told["tokens_per_s"] = round(pace * tokens / self.program.step_s)
        return told

    @property
    def _loss(self) -> float:
        steady = 1.0 + 9.0 * math.exp(-self.step / self.program.loss_scale_steps)
        return round(steady * (1 + self.program.loss_noise * _wobble("loss", self.step)), 4)

    def _save(self) -> None:
        snapshot_s = self.now_s
        self.now_s += self.program.stall_s
        self.uplink_free_s = max(self.uplink_free_s, self.now_s) + self.program.upload_s
        self.saved_step = self.step
        body: dict[str, Json] = {
            "step": self.step,
            "checkpoint": f"step-{self.step:010d}-epoch-{self.met.attempt}",
            "size_bytes": self.program.checkpoint_bytes,
            "stall_ms": round(self.program.stall_s * 1000),
            "upload_ms": round((self.uplink_free_s - self.now_s) * 1000),
            "weights_sha256": weights_sha256(self.step),
            "metrics": {"loss": {"value": self._loss, "step": self.step}},
        }
        self.said.append(
            Said(self.uplink_free_s, ReportKind.CHECKPOINT_COMMITTED, body, snapshot_s)
        )

    def _leave(self) -> tuple[float, int]:
        left_s = self.met.deadline_s - self.now_s
        self._say(ReportKind.PREEMPTION_NOTICED, step=self.step, left_s=round(left_s, 3))
        if self.saved_step < self.step:
            self._save()
        self.now_s = max(self.now_s, self.uplink_free_s)
        self._left(LeftReason.PREEMPTED, Exit.PREEMPTED)
        return self.now_s, int(Exit.PREEMPTED)

    def _fail(self, failure: Failure) -> tuple[float, int]:
        left = failure.exit_code == Exit.PREEMPTED
        reason = LeftReason.PREEMPTED if left else LeftReason.FAILED
        self._left(reason, failure.exit_code, failure.detail)
        return self.now_s, failure.exit_code

    def _left(self, reason: LeftReason, exit_code: int, detail: str = "") -> None:
        self._say(
            ReportKind.WORKER_LEFT,
            step=self.step,
            reason=reason,
            exit_code=exit_code,
            detail=detail,
        )

    def _say(self, kind: ReportKind, **body: Json) -> None:
        self.said.append(Said(self.now_s, kind, body))


def _wobble(*what: str | int) -> float:
    """A number from -1 to 1 that looks like chance, and is the same for the same words."""
    return zlib.crc32("/".join(map(str, what)).encode()) / 2**31 - 1
