"""Crash points: places in the worker at which a rank is killed or receives a notice.

A crash point is the n-th line of Holdfast that a rank executes during the k-th run of an operation: within an
upload, between a commit and the pointer, anywhere. A seed determines the crash, and the code runs unchanged.
An operation with fewer lines reaches its crash point at its end. A delay moves the crash into code that is
not Python: a collective, a request, a flush to disk.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import holdfast_worker
from holdfast_worker.clock import now
from holdfast_worker.run_dir import RunDir

OURS: Final = str(Path(holdfast_worker.__file__).parent)


@dataclass(frozen=True)
class RankOperation:
    """An operation of a rank. Nested calls belong to it, except for nested operations."""

    functions: tuple[str, ...]
    """Modules and names of the functions that perform it."""
    lines: int
    """Approximate maximum number of its lines."""
    times: int = 1
    """How often a whole run usually performs it."""
    is_on_first_rank: bool = False
    """Whether only the first rank performs it."""
    needs_checkpoint: bool = False
    """Whether it runs only if a checkpoint was found."""
    is_in_every_save: bool = False
    """Whether each save performs it once on each participating rank."""
    weight: int = 1
    """Weight of its selection; operations whose crash could do most harm have the highest."""


def _module(file: str) -> str:
    """Return the worker module of a file, without the name of the package."""
    return ".".join(Path(file).relative_to(OURS).with_suffix("").parts)


def _save_operation(
    *functions: str, lines: int, is_on_first_rank: bool = False, weight: int = 1
) -> RankOperation:
    """An operation of every save.

    A run mostly saves three times; the third save removes a checkpoint.
    """
    return RankOperation(
        functions, lines, 3, is_on_first_rank=is_on_first_rank, is_in_every_save=True, weight=weight
    )


STORES: Final = (
    "storage.directory:DirectoryStore",
    "storage.s3:S3Store",
    "storage.cloud:CloudStore",
)
PUT: Final = tuple(f"{store}.put" for store in STORES)
PUT_IF_ABSENT: Final = tuple(f"{store}.put_if_absent" for store in STORES)
SWAP: Final = tuple(f"{store}.swap" for store in STORES)
LIST: Final = tuple(f"{store}.list" for store in STORES)
DELETE: Final = tuple(f"{store}.delete" for store in STORES)

OPERATIONS: Final[Mapping[str, RankOperation]] = {
    "meet": RankOperation(("distributed.process_group:ProcessGroup.join",), 12),
    "begin": RankOperation(("run:Run._initialize",), 300),
    "begin: put if absent": RankOperation(PUT_IF_ABSENT, 23, times=2, is_on_first_rank=True),
    "claim": RankOperation(("checkpoint.fencing:FencingTokens.claim",), 100, is_on_first_rank=True),
    "claim: put if absent": RankOperation(PUT_IF_ABSENT, 23, is_on_first_rank=True),
    "restore": RankOperation(("checkpoint.checkpointer:Checkpointer.restore",), 300),
    "read": RankOperation(
        ("checkpoint.collective:read_checkpoint",), 9000, needs_checkpoint=True, weight=3
    ),
    "receive": RankOperation(
        ("checkpoint.repository:CheckpointRepository._receive",),
        300,
        needs_checkpoint=True,
        weight=3,
    ),
    "load": RankOperation(
        ("checkpoint.stateful:TrackedState.load",), 10, needs_checkpoint=True, weight=3
    ),
    "record the start": RankOperation(
        ("checkpoint.fencing:FencingTokens.record_start",), 40, is_on_first_rank=True
    ),
    "record the start: put": RankOperation(PUT, 20, is_on_first_rank=True),
    "open the data": RankOperation(
        ("data.resumable_loader:ResumableLoader._begin_pass",), 100, times=5
    ),
    "train": RankOperation(("run:Run._end_step",), 8, times=30, weight=2),
    "vote": RankOperation(("step_boundary:StepBoundary.run",), 100, times=30),
    "snapshot": _save_operation("checkpoint.snapshot:stage", lines=11000),
    "copy": _save_operation("checkpoint.staging:StagingCopy._run", lines=150),
    "upload": _save_operation(
        "checkpoint.repository:CheckpointRepository.upload", lines=700, weight=2
    ),
    "upload: put": _save_operation(*PUT, lines=20, weight=3),
    "send": _save_operation(
        "checkpoint.repository:CheckpointRepository._send", lines=250, weight=2
    ),
    "send: put": _save_operation(*PUT, lines=20, weight=3),
    "gather": _save_operation(
        "checkpoint.writer:AsyncWriter._wait_for_shards", lines=100, is_on_first_rank=True
    ),
    "look at the fence": _save_operation(
        "checkpoint.fencing:FencingTokens.check", lines=25, is_on_first_rank=True
    ),
    "commit": _save_operation(
        "checkpoint.repository:CheckpointRepository.commit", lines=2000, is_on_first_rank=True
    ),
    "commit: put if absent": _save_operation(
        *PUT_IF_ABSENT, lines=23, is_on_first_rank=True, weight=4
    ),
    "point": _save_operation(
        "checkpoint.index:LatestPointer.advance", lines=40, is_on_first_rank=True
    ),
    "point: swap": _save_operation(*SWAP, lines=30, is_on_first_rank=True, weight=2),
    "report": _save_operation(
        "checkpoint.writer:AsyncWriter._report_commit", lines=70, is_on_first_rank=True
    ),
    "prune": _save_operation(
        "checkpoint.repository:CheckpointRepository.prune",
        lines=400,
        is_on_first_rank=True,
        weight=2,
    ),
    "prune: list": RankOperation(LIST, 20, times=4, is_on_first_rank=True),
    "prune: delete": RankOperation(DELETE, 8, times=4, is_on_first_rank=True, weight=2),
    "finish": RankOperation(("run:Run.finish",), 400),
}
"""The operations of an uninterrupted run. After a colon: their requests to the store."""

EXIT_ON_NOTICE: Final = RankOperation(("step_boundary:StepBoundary._leave_on_notice",), 400)


class FaultAction(StrEnum):
    """What happens at a crash point."""

    KILL = "kill"
    KILL_ALL = "kill all"
    """Kill all ranks at once, as if the machine were lost."""
    NOTICE = "notice"
    """Send a termination notice to this rank only."""
    NOTICE_ALL = "notice all"
    """Send a termination notice to all ranks, as `holdfast-worker run` does."""


@dataclass(frozen=True)
class CrashPoint:
    """A place in the code, and the action there."""

    operation: str
    time: int
    """Counted from 1."""
    line: int
    action: str
    delay_ms: float = 0.0
    left_s: float | None = None
    """Remaining time of a notice; None: not specified."""

    def __str__(self) -> str:
        """Describe the crash point for messages."""
        delay = f", {self.delay_ms:.1f} ms later" if self.delay_ms else ""
        left = "" if self.left_s is None else f", {self.left_s} s left"
        return f"{self.action} at line {self.line} of {self.operation} {self.time}{delay}{left}"


def install(points: Sequence[CrashPoint], reached: Path) -> None:
    """Trace this process and act at these crash points, recording each in `reached` first."""
    if not points:
        return
    tracer = _Tracer(points, reached)
    threading.settrace(tracer.on_call)
    sys.settrace(tracer.on_call)


def read_reached(reached: Path) -> list[str]:
    """Return the recorded crash points, each with its module and line."""
    return reached.read_text().splitlines() if reached.exists() else []


@dataclass
class _Execution:
    """One execution of an operation."""

    operation: str
    pending: list[CrashPoint]
    lines: int = 0


@dataclass
class _Tracer:
    """Traces one rank and acts at its crash points."""

    points: Sequence[CrashPoint]
    reached: Path
    names: dict[CodeType, str] = field(default_factory=dict)
    """Qualified names of worker functions."""
    here: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        all_operations = {**OPERATIONS, "leave": EXIT_ON_NOTICE}
        self.times = {operation: count(1) for operation in all_operations}
        self.operations = {
            (operation.rpartition(": ")[0], function): operation
            for operation, what in all_operations.items()
            for function in what.functions
        }

    def on_call(self, frame: FrameType, _what: str, _arg: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            return None
        if code not in self.names:
            self.names[code] = f"{_module(code.co_filename)}:{code.co_qualname}"
        running: list[_Execution] = self.here.__dict__.setdefault("running", [])
        outer = running[-1].operation if running else ""
        name = self.names[code]
        operation = self.operations.get((outer, name)) or self.operations.get(("", name))
        if operation is not None:
            time = next(self.times[operation])
            pending = [
                point for point in self.points if (point.operation, point.time) == (operation, time)
            ]
            running.append(_Execution(operation, pending))
            frame.f_trace_lines = bool(pending)
            return self._trace_operation
        return self._trace_nested if running and running[-1].pending else None

    def _trace_operation(self, frame: FrameType, what: str, _arg: Any) -> Callable[..., Any]:
        execution: _Execution = self.here.running[-1]
        if what == "line":
            self._count(execution, frame)
        elif what == "return":
            self.here.running.pop()
            for point in execution.pending:
                self._reach(point, frame)
        return self._trace_operation

    def _trace_nested(self, frame: FrameType, what: str, _arg: Any) -> Callable[..., Any]:
        if what == "line" and self.here.running:
            self._count(self.here.running[-1], frame)
        return self._trace_nested

    def _count(self, execution: _Execution, frame: FrameType) -> None:
        execution.lines += 1
        for point in [point for point in execution.pending if point.line == execution.lines]:
            execution.pending.remove(point)
            self._reach(point, frame)

    def _reach(self, point: CrashPoint, frame: FrameType) -> None:
        """Act at a crash point, from a thread if delayed: the interpreter may be blocked by then."""
        where = f"{_module(frame.f_code.co_filename)}:{frame.f_lineno}"
        with self.reached.open("a") as file:
            file.write(f"{point}, {where}\n")
        if point.delay_ms:
            threading.Thread(target=_act_later, args=(point,), daemon=True).start()
        else:
            _act(point)


def _act_later(point: CrashPoint) -> None:
    threading.Event().wait(point.delay_ms / 1000)
    _act(point)


def _act(point: CrashPoint) -> None:
    match FaultAction(point.action):
        case FaultAction.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case FaultAction.KILL_ALL:
            os.killpg(0, signal.SIGKILL)
        case FaultAction.NOTICE:
            _notice(point)
            os.kill(os.getpid(), signal.SIGTERM)
        case FaultAction.NOTICE_ALL:
            # Ranks that register later will find the recorded notice.
            for pid in _notice(point).registered_pids().values():
                os.kill(pid, signal.SIGTERM)


def _notice(point: CrashPoint) -> RunDir:
    run_dir = RunDir(Path(os.environ["HOLDFAST_RUN_DIR"]))
    run_dir.record_notice(None if point.left_s is None else now() + timedelta(seconds=point.left_s))
    return run_dir
