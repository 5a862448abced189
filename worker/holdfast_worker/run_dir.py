"""The run directory: how a launcher, `holdfast-worker run` and the ranks of one node talk. Standard library only.

Whoever writes first is believed: a rank that falls over because another one fell must not overwrite the first
one's reason, and a wrapper must not overwrite a notice in which the launcher named the deadline.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from holdfast_worker.clock import to_iso
from holdfast_worker.protocol.environment import LEFT_FILE, NOTICE_FILE, TRAINED_FILE

HINT_FILE: Final = "hint.json"
"""Written by the wrapper: `{"at": RFC 3339 time}` since which the cloud says that the node may be taken before long."""
FAILURE_FILE: Final = "failure.json"
"""Written by the agent: `{"rank": ..., "exit_code": ...}` of the rank that fell first."""

LONGEST_TAIL: Final = 64 * 1024
"""Bytes of a log that are read for its last words. More may be all that a month has written, less half a line."""


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why a rank stopped stepping."""

    reason: str
    exit_code: int
    step: int
    detail: str = ""
    rank: int | None = None
    """Who says so; None if all ranks agreed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The rank of a node that fell first."""

    rank: int
    exit_code: int
    """As a shell would show it: 128 + n after signal n."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of one node of one placement."""

    path: Path

    def clear(self) -> None:
        """Make room for a run. A notice stays, and a hint: they may have come before us."""
        (self.path / "ranks").mkdir(parents=True, exist_ok=True)
        for name in (LEFT_FILE, TRAINED_FILE, FAILURE_FILE):
            (self.path / name).unlink(missing_ok=True)
        for pattern in ("*.pid", "*.beat", "*.ask"):
            for file in (self.path / "ranks").glob(pattern):
                file.unlink()
        shutil.rmtree(self.hang, ignore_errors=True)
        self.hang.mkdir(exist_ok=True)
        self.nccl.mkdir(exist_ok=True)

    def log(self, rank: int) -> Path:
        """Where a rank's output goes."""
        return self.path / "ranks" / f"rank-{rank}.log"

    def last_line(self, rank: int) -> str:
        """The last line that a rank wrote with anything on it; empty if there is none."""
        try:
            with self.log(rank).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LONGEST_TAIL))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def register(self, rank: int, pid: int) -> None:
        """Let the wrapper know whom to signal."""
        (self.path / "ranks").mkdir(parents=True, exist_ok=True)
        write_first(self.path / "ranks" / f"rank-{rank}.pid", str(pid))

    def registered(self) -> dict[int, int]:
        """Process ids of this node's ranks, by rank."""
        files = (self.path / "ranks").glob("rank-*.pid")
        return {int(file.stem.removeprefix("rank-")): int(file.read_text()) for file in files}

    @property
    def hang(self) -> Path:
        """Where it is kept what ranks did that stood still."""
        return self.path / "hang"

    @property
    def nccl(self) -> Path:
        """Where NCCL writes how it connects ranks, a file for each process; older runs have left theirs."""
        return self.path / "nccl"

    def answers(self, rank: int) -> Path:
        """Where a rank writes where its threads are, when it is asked."""
        return self.hang / f"rank-{rank}.answers.txt"

    def show_beat(self, rank: int, place: str) -> None:
        """Let the wrapper know where to read the beat of a rank."""
        (self.path / "ranks").mkdir(parents=True, exist_ok=True)
        write_first(self.path / "ranks" / f"rank-{rank}.beat", place)

    def beats(self) -> dict[int, Path]:
        """Where the beats of this node's ranks are to be read, by rank."""
        files = (self.path / "ranks").glob("rank-*.beat")
        return {int(file.stem.removeprefix("rank-")): Path(file.read_text()) for file in files}

    def open_ear(self, rank: int) -> int:
        """File descriptor of the pipe at which the wrapper asks a rank."""
        pipe = self.path / "ranks" / f"rank-{rank}.ask"
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        # For writing, too: so that it is never at its end.
        return os.open(pipe, os.O_RDWR)

    def ask(self, rank: int) -> bool:
        """Ask a rank what it has recorded. False if it has no ear."""
        try:
            pipe = os.open(self.path / "ranks" / f"rank-{rank}.ask", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            return os.write(pipe, b"?") == 1
        except OSError:
            return False
        finally:
            os.close(pipe)

    def notice(self, deadline: datetime | None) -> None:
        """Write that the end is near, unless somebody did so already."""
        told = None if deadline is None else to_iso(deadline)
        write_first(self.path / NOTICE_FILE, json.dumps({"deadline": told}))

    def is_noticed(self) -> bool:
        """Whether anybody said that the end is near."""
        return (self.path / NOTICE_FILE).exists()

    def deadline(self) -> datetime | None:
        """When the node goes; None without a notice, or with one that does not say."""
        raw = read_json(self.path / NOTICE_FILE)
        told = None if raw is None else raw.get("deadline")
        return datetime.fromisoformat(told) if isinstance(told, str) else None

    def hint(self, at: datetime) -> None:
        """Write that the node is more likely than others to be taken: no reason to leave, but one to save soon."""
        write_first(self.path / HINT_FILE, json.dumps({"at": to_iso(at)}))

    def is_hinted(self) -> bool:
        """Whether the cloud gave such a hint."""
        return (self.path / HINT_FILE).exists()

    def leave(self, left: ExitReason) -> None:
        """Write why the first rank of this node leaves; later reasons are consequences of the first."""
        write_first(self.path / LEFT_FILE, json.dumps(asdict(left)))

    def settle(self, left: ExitReason) -> None:
        """Write why all ranks had to leave, over what one of them made of it; for the wrapper, which has heard all."""
        draft = self.path / f".{LEFT_FILE}.settled"
        draft.write_text(json.dumps(asdict(left)))
        draft.replace(self.path / LEFT_FILE)

    def left(self) -> ExitReason | None:
        """Why the first rank left; None while nobody has, or when nobody could say."""
        raw = read_json(self.path / LEFT_FILE)
        if raw is None:
            return None
        return ExitReason(
            str(raw["reason"]),
            int(str(raw["exit_code"])),
            int(str(raw["step"])),
            str(raw["detail"]),
            None if raw.get("rank") is None else int(str(raw["rank"])),
        )

    def mark_trained(self) -> None:
        """Write that a first step has been finished."""
        (self.path / TRAINED_FILE).touch()

    def fail(self, failure: Failure) -> None:
        """Write which rank fell first."""
        write_first(self.path / FAILURE_FILE, json.dumps(asdict(failure)))

    def failure(self) -> Failure | None:
        """The rank that fell first; None if none did."""
        raw = read_json(self.path / FAILURE_FILE)
        return None if raw is None else Failure(int(str(raw["rank"])), int(str(raw["exit_code"])))


def write_first(path: Path, text: str) -> None:
    """Put a whole file there, or leave the one that is there. A link, since a rename would overwrite."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    try:
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()


def read_json(path: Path) -> dict[str, object] | None:
    """The JSON object in a file; None where there is none."""
    try:
        raw = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return raw if isinstance(raw, dict) else None
