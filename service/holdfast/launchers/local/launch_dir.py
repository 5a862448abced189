"""The directory of one launch, which is the truth about it, and its lock.

The lock's holder may act for the launch; a free lock proves that no process does. It is an flock, so it belongs to an
open file and not to a process. The submitter acquires it and hands the open file to the supervisor. The lock is
therefore never free while the supervisor runs, and every kind of process death releases it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

from holdfast_worker.protocol.environment import HOSTED_LOG_SUFFIX

from holdfast.launchers.local.cgroup import ControlGroup
from holdfast.launchers.local.event_log import LaunchLog

RECORD_FILES: Final = frozenset({"history.jsonl", "cancel", "lock"})
"""Files that are always kept.
Without them, a repeated submission would start the launch again."""


@dataclass(frozen=True, slots=True)
class PreemptRequest:
    """A request to preempt a node of one placement."""

    placement: int
    node: int
    notice_s: float | None
    """Seconds of notice; None: no notice."""


@dataclass(frozen=True, slots=True)
class NodeDir:
    """Files of one node of one attempt."""

    path: Path

    @property
    def workdir(self) -> Path:
        """The program's own copy of the files; deleted when the next placement starts."""
        return self.path / "workdir"

    @property
    def run(self) -> Path:
        """The directory for HOLDFAST_RUN_DIR."""
        return self.path / "run"

    @property
    def home(self) -> Path:
        """The directory for HOME of a confined job."""
        return self.path / "home"

    @property
    def scratch(self) -> Path:
        """The directory for TMPDIR of a confined job."""
        return self.path / "tmp"

    @property
    def spool(self) -> Path:
        """Directory where the worker of a confined job leaves reports for the service."""
        return self.path / "spool"

    @property
    def log(self) -> Path:
        """Output of setup and run."""
        return self.path / "node.log"

    def script(self, name: str) -> Path:
        """Path of the `setup` or `run` script for bash."""
        return self.path / f"{name}.sh"

    def rank_log(self, rank: int) -> Path:
        """Output of one rank, written by the worker."""
        return self.run / "ranks" / f"rank-{rank}.log"

    def hosted_rank_log(self, rank: int) -> Path:
        """Output of one rank of a missing node that ran on this one."""
        return self.run / "ranks" / f"rank-{rank}{HOSTED_LOG_SUFFIX}"

    def ranks(self) -> list[int]:
        """Global ranks of this node that have a log in this directory."""
        return self._ranks_with(".log")

    def hosted_ranks(self) -> list[int]:
        """Global ranks of missing nodes that have a log in this directory."""
        return self._ranks_with(HOSTED_LOG_SUFFIX)

    def _ranks_with(self, suffix: str) -> list[int]:
        names = (path.name for path in self.rank_log(0).parent.glob(f"rank-*{suffix}"))
        pattern = re.compile(rf"rank-(\d+){re.escape(suffix)}")
        return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


@dataclass(frozen=True, slots=True)
class LaunchDir:
    """All files of one launch."""

    path: Path

    @property
    def history(self) -> LaunchLog:
        """The log of the launch, which has started once it has an entry."""
        return LaunchLog(self.path / "history.jsonl")

    @property
    def lock(self) -> Path:
        """Lock held by the supervisor while it runs, and by a submitter that starts one."""
        return self.path / "lock"

    @property
    def snapshot(self) -> Path:
        """Copy of the files at submission, so that later edits do not change further attempts."""
        return self.path / "workdir"

    @property
    def spool(self) -> Path:
        """Directory where workers leave reports; outlives placements."""
        return self.path / "spool"

    @property
    def log(self) -> Path:
        """Output of the supervisor and its guards: empty unless Holdfast has a bug."""
        return self.path / "supervisor.log"

    def create(self) -> None:
        """Create the directory, readable by its owner only: output may be confidential."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def node(self, attempt: int, node: int) -> NodeDir:
        """Return the files of one node of one attempt."""
        return NodeDir(self._attempts / str(attempt) / f"node-{node}")

    def link_attempts(self, folder: Path) -> None:
        """Store the nodes' files in another directory, because a confined job cannot enter this one."""
        with suppress(FileExistsError):
            (self.path / "attempts").symlink_to(folder)

    def link_cgroup(self, group: str | None) -> None:
        """Record the control group of a confined job, for cleanup after its supervisor's death."""
        if group:
            with suppress(FileExistsError):
                self._group.symlink_to(group)

    @property
    def group(self) -> ControlGroup | None:
        """The control group of a confined job; None if it has none."""
        return ControlGroup(self._group.readlink()) if self._group.is_symlink() else None

    def has_files(self) -> bool:
        """Whether the directory holds more than the record of the launch."""
        return any(path.name not in RECORD_FILES for path in self.path.iterdir())

    def discard_files(self) -> None:
        """Delete everything except the record. Requires the lock, after all processes have ended.

        Raises:
            OSError: some files remain.
        """
        with suppress(FileNotFoundError):
            shutil.rmtree(
                self._attempts
            )  # A confined job's files are in another directory; the link names it until it is deleted.
        for path in self.path.iterdir():
            if path.name in RECORD_FILES:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def nodes(self) -> list[tuple[int, int]]:
        """Attempt and node of all nodes that ever existed, in order."""
        paths = self._attempts.glob("*/node-*")
        return sorted(
            (int(path.parent.name), int(path.name.removeprefix("node-"))) for path in paths
        )

    def tombstone(self, at: datetime) -> None:
        """Write the tombstone that ends this launch or prevents its start. The first one is kept."""
        self.create()
        text = self.path / f"cancel.{uuid4().hex}"
        text.write_text(at.isoformat())
        with suppress(FileExistsError):
            # A link makes the file appear atomically; a truncated tombstone would have no date.
            os.link(text, self._tombstone)
        text.unlink()

    def cancelled_at(self) -> datetime | None:
        """Time of the first cancel request; None if there is none."""
        try:
            return datetime.fromisoformat(self._tombstone.read_text())
        except FileNotFoundError:
            return None

    def request_preemption(self, request: PreemptRequest) -> None:
        """Leave a preemption request for the supervisor."""
        self._requests.mkdir(exist_ok=True)
        write_atomically(self._requests / f"{uuid4().hex}.json", json.dumps(asdict(request)))

    def pop_preemptions(self, placement: int) -> Iterator[PreemptRequest]:
        """Remove all requests and yield those for `placement`."""
        for path in self._requests.glob("*.json"):
            request = PreemptRequest(**json.loads(path.read_text()))
            path.unlink()
            if request.placement == placement:
                yield request

    @property
    def _attempts(self) -> Path:
        here = self.path / "attempts"
        return here.readlink() if here.is_symlink() else here

    @property
    def _group(self) -> Path:
        return self.path / "cgroup"

    @property
    def _tombstone(self) -> Path:
        return self.path / "cancel"

    @property
    def _requests(self) -> Path:
        return self.path / "preempt"


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, readable only by the directory's owner."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
        if (owner := path.parent.stat().st_uid) != os.geteuid():
            os.fchown(file.fileno(), owner, owner)  # The directory belongs to a confined job.
        file.write(text)
    draft.replace(path)


def acquire_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock until its last copy is closed; None if it is held."""
    holder = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(holder)
        return None
    return holder


def is_unlocked(path: Path) -> bool:
    """Whether the lock is free."""
    holder = acquire_lock(path)
    if holder is None:
        return False
    os.close(holder)
    return True
