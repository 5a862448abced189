"""Reefs: places in the worker at which a rank is killed, or hears that its node will be taken.

A crash point is the n-th line of Holdfast that a rank executes while it does a certain thing for the k-th time: in the middle of
an upload, between a commit and the pointer, anywhere. So one seed is one crash, and the real code runs, not a line of it
changed. Who does the thing with fewer lines strikes at its end. A fuse lets a rank strike so much later, which may be in
what is no Python: a sum over ranks, a request, a flush to the disk.
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
class Doing:
    """Something that a rank does. What is done within it belongs to it, but for what is a doing itself."""

    functions: tuple[str, ...]
    """Modules and names of the functions that do it."""
    lines: int
    """How many it takes, about, at the most."""
    times: int = 1
    """How often a whole run does it, as a rule."""
    by_first: bool = False
    """Whether the first rank alone does it."""
    needs_checkpoint: bool = False
    """Whether only those do it that find one."""
    is_of_a_save: bool = False
    """Whether every save does it once, on each rank that does it."""
    chance: int = 1
    """How often it is chosen, beside others: where a crash could do most harm, most often."""


def _module(file: str) -> str:
    """The module of a file of the worker, without the name of the package."""
    return ".".join(Path(file).relative_to(OURS).with_suffix("").parts)


def _of_a_save(*functions: str, lines: int, by_first: bool = False, chance: int = 1) -> Doing:
    """What every save does once. There are mostly three, of which the third has an old one to remove."""
    return Doing(functions, lines, 3, by_first=by_first, is_of_a_save=True, chance=chance)


PUT: Final = ("storage.directory:DirectoryStore.put", "storage.s3:S3Store.put")
PUT_IF_ABSENT: Final = (
    "storage.directory:DirectoryStore.put_if_absent",
    "storage.s3:S3Store.put_if_absent",
)
SWAP: Final = ("storage.directory:DirectoryStore.swap", "storage.s3:S3Store.swap")
LIST: Final = ("storage.directory:DirectoryStore.list", "storage.s3:S3Store.list")
DELETE: Final = ("storage.directory:DirectoryStore.delete", "storage.s3:S3Store.delete")

DOINGS: Final[Mapping[str, Doing]] = {
    "meet": Doing(("distributed.process_group:ProcessGroup.join",), 12),
    "begin": Doing(("run:Run._initialize",), 300),
    "begin: put if absent": Doing(PUT_IF_ABSENT, 23, times=2, by_first=True),
    "claim": Doing(("checkpoint.fencing:FencingTokens.claim",), 100, by_first=True),
    "claim: put if absent": Doing(PUT_IF_ABSENT, 23, by_first=True),
    "restore": Doing(("checkpoint.checkpointer:Checkpointer.restore",), 300),
    "read": Doing(
        ("checkpoint.collective:read_checkpoint",), 9000, needs_checkpoint=True, chance=3
    ),
    "receive": Doing(
        ("checkpoint.repository:CheckpointRepository._receive",),
        300,
        needs_checkpoint=True,
        chance=3,
    ),
    "load": Doing(("checkpoint.stateful:TrackedState.load",), 10, needs_checkpoint=True, chance=3),
    "record the start": Doing(
        ("checkpoint.fencing:FencingTokens.record_start",), 40, by_first=True
    ),
    "record the start: put": Doing(PUT, 20, by_first=True),
    "open the data": Doing(("data.resumable_loader:ResumableLoader._begin_pass",), 100, times=5),
    "train": Doing(("run:Run._end_step",), 8, times=30, chance=2),
    "vote": Doing(("step_boundary:StepBoundary.run",), 100, times=30),
    "snapshot": _of_a_save("checkpoint.snapshot:stage", lines=11000),
    "copy": _of_a_save("checkpoint.staging:StagingCopy._run", lines=150),
    "upload": _of_a_save("checkpoint.repository:CheckpointRepository.upload", lines=700, chance=2),
    "upload: put": _of_a_save(*PUT, lines=20, chance=3),
    "send": _of_a_save("checkpoint.repository:CheckpointRepository._send", lines=250, chance=2),
    "send: put": _of_a_save(*PUT, lines=20, chance=3),
    "gather": _of_a_save(
        "checkpoint.writer:AsyncWriter._wait_for_shards", lines=100, by_first=True
    ),
    "look at the fence": _of_a_save(
        "checkpoint.fencing:FencingTokens.check", lines=25, by_first=True
    ),
    "commit": _of_a_save(
        "checkpoint.repository:CheckpointRepository.commit", lines=2000, by_first=True
    ),
    "commit: put if absent": _of_a_save(*PUT_IF_ABSENT, lines=23, by_first=True, chance=4),
    "point": _of_a_save("checkpoint.index:LatestPointer.advance", lines=40, by_first=True),
    "point: swap": _of_a_save(*SWAP, lines=30, by_first=True, chance=2),
    "report": _of_a_save("checkpoint.writer:AsyncWriter._report_commit", lines=70, by_first=True),
    "tidy": _of_a_save(
        "checkpoint.repository:CheckpointRepository.prune", lines=400, by_first=True, chance=2
    ),
    "tidy: list": Doing(LIST, 20, times=4, by_first=True),
    "tidy: delete": Doing(DELETE, 8, times=4, by_first=True, chance=2),
    "finish": Doing(("run:Run.finish",), 400),
}
"""All steps of an undisturbed run. After a colon: its requests to the store."""

LEAVING: Final = Doing(("step_boundary:StepBoundary._leave_on_notice",), 400)


class FaultAction(StrEnum):
    """What happens at a crash point."""

    KILL = "kill"
    KILL_ALL = "kill all"
    """All ranks at once, as when the machine goes."""
    NOTICE = "notice"
    """That the node will be taken, to this rank alone."""
    NOTICE_ALL = "notice all"
    """The same to all, as `holdfast-worker run` does it."""


@dataclass(frozen=True)
class CrashPoint:
    """A place, and what happens there."""

    doing: str
    time: int
    """Counted from 1."""
    line: int
    deed: str
    fuse_ms: float = 0.0
    left_s: float | None = None
    """Of a notice: until the node goes; None if it does not say."""

    def __str__(self) -> str:
        """In words, for messages."""
        fuse = f", {self.fuse_ms:.1f} ms later" if self.fuse_ms else ""
        left = "" if self.left_s is None else f", {self.left_s} s left"
        return f"{self.deed} at line {self.line} of {self.doing} {self.time}{fuse}{left}"


def lay(points: Sequence[CrashPoint], struck: Path) -> None:
    """Have this process strike them; each is first recorded in `struck`."""
    if not points:
        return
    course = _Course(points, struck)
    threading.settrace(course.on_call)
    sys.settrace(course.on_call)


def words_of(struck: Path) -> list[str]:
    """What was struck, and at which line of which module."""
    return struck.read_text().splitlines() if struck.exists() else []


@dataclass
class _Stretch:
    """Something that is being done."""

    doing: str
    ahead: list[CrashPoint]
    lines: int = 0


@dataclass
class _Course:
    """The crash points of one rank, in order."""

    points: Sequence[CrashPoint]
    struck: Path
    names: dict[CodeType, str] = field(default_factory=dict)
    """Of functions of ours, as a doing has them."""
    here: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        everything = {**DOINGS, "leave": LEAVING}
        self.times = {doing: count(1) for doing in everything}
        self.doings = {
            (doing.rpartition(": ")[0], function): doing
            for doing, what in everything.items()
            for function in what.functions
        }

    def on_call(self, frame: FrameType, _what: str, _arg: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            return None
        if code not in self.names:
            self.names[code] = f"{_module(code.co_filename)}:{code.co_qualname}"
        under_way: list[_Stretch] = self.here.__dict__.setdefault("under_way", [])
        around = under_way[-1].doing if under_way else ""
        name = self.names[code]
        doing = self.doings.get((around, name)) or self.doings.get(("", name))
        if doing is not None:
            time = next(self.times[doing])
            ahead = [point for point in self.points if (point.doing, point.time) == (doing, time)]
            under_way.append(_Stretch(doing, ahead))
            frame.f_trace_lines = bool(ahead)
            return self._of_doing
        return self._within if under_way and under_way[-1].ahead else None

    def _of_doing(self, frame: FrameType, what: str, _arg: Any) -> Callable[..., Any]:
        stretch: _Stretch = self.here.under_way[-1]
        if what == "line":
            self._count(stretch, frame)
        elif what == "return":
            self.here.under_way.pop()
            for point in stretch.ahead:
                self._strike(point, frame)
        return self._of_doing

    def _within(self, frame: FrameType, what: str, _arg: Any) -> Callable[..., Any]:
        if what == "line" and self.here.under_way:
            self._count(self.here.under_way[-1], frame)
        return self._within

    def _count(self, stretch: _Stretch, frame: FrameType) -> None:
        stretch.lines += 1
        for point in [point for point in stretch.ahead if point.line == stretch.lines]:
            stretch.ahead.remove(point)
            self._strike(point, frame)

    def _strike(self, point: CrashPoint, frame: FrameType) -> None:
        """Crash. A timer thread kills the rank while torch or a request keeps the interpreter waiting."""
        where = f"{_module(frame.f_code.co_filename)}:{frame.f_lineno}"
        with self.struck.open("a") as file:
            file.write(f"{point}, {where}\n")
        if point.fuse_ms:
            threading.Thread(target=_burn, args=(point,), daemon=True).start()
        else:
            _do(point)


def _burn(point: CrashPoint) -> None:
    threading.Event().wait(point.fuse_ms / 1000)
    _do(point)


def _do(point: CrashPoint) -> None:
    match FaultAction(point.deed):
        case FaultAction.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case FaultAction.KILL_ALL:
            os.killpg(0, signal.SIGKILL)
        case FaultAction.NOTICE:
            _notice(point)
            os.kill(os.getpid(), signal.SIGTERM)
        case FaultAction.NOTICE_ALL:
            # Ranks that are not registered yet will find it written.
            for pid in _notice(point).registered_pids().values():
                os.kill(pid, signal.SIGTERM)


def _notice(point: CrashPoint) -> RunDir:
    run_dir = RunDir(Path(os.environ["HOLDFAST_RUN_DIR"]))
    run_dir.record_notice(None if point.left_s is None else now() + timedelta(seconds=point.left_s))
    return run_dir
