"""The directory of one launch. It is the truth: whoever can read it knows the launch, whatever has died meanwhile.

The lock of a launch: whoever holds it may act for the launch, and a free one proves that nobody does.

It is an flock, so it belongs to an open file, not to a process: the submitter takes it and hands the open file to the
supervisor it starts. There is no moment in which the supervisor runs and the lock is free, and no death, however
sudden, that leaves it taken.
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

from holdfast.launchers.local.cgroup import ControlGroup
from holdfast.launchers.local.event_log import LaunchLog

RECORD: Final = frozenset({"history.jsonl", "cancel", "lock"})
"""Files of a launch that are always kept: without them, a repeated submit would start it again."""


@dataclass(frozen=True, slots=True)
class PreemptRequest:
    """Somebody asked the market to take a node of one placement."""

    placement: int
    node: int
    notice_s: float | None
    """None: without a word before."""


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """Where one node of one attempt lives."""

    path: Path

    @property
    def workdir(self) -> Path:
        """The program's own copy of the files; it goes when the next placement comes."""
        return self.path / "workdir"

    @property
    def run(self) -> Path:
        """HOLDFAST_RUN_DIR."""
        return self.path / "run"

    @property
    def home(self) -> Path:
        """HOME of a confined job."""
        return self.path / "home"

    @property
    def scratch(self) -> Path:
        """TMPDIR of a confined job."""
        return self.path / "tmp"

    @property
    def spool(self) -> Path:
        """Where the worker of a confined job leaves reports that the service has not taken yet."""
        return self.path / "spool"

    @property
    def log(self) -> Path:
        """What setup and run printed."""
        return self.path / "node.log"

    def script(self, name: str) -> Path:
        """Where the text of `setup` or `run` is kept for bash."""
        return self.path / f"{name}.sh"

    def rank_log(self, rank: int) -> Path:
        """What one rank printed; written by the worker."""
        return self.run / "ranks" / f"rank-{rank}.log"

    def ranks(self) -> list[int]:
        """Global ranks that have a log here."""
        names = (path.name for path in self.rank_log(0).parent.glob("rank-*.log"))
        return sorted(
            int(match[1]) for name in names if (match := re.search(r"-(\d+)\.log$", name))
        )


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """Everything that is kept about one launch."""

    path: Path

    @property
    def history(self) -> LaunchLog:
        """What happened. A launch has begun once it has a line."""
        return LaunchLog(self.path / "history.jsonl")

    @property
    def lock(self) -> Path:
        """Held by the supervisor for as long as it lives, and by whoever is about to start one."""
        return self.path / "lock"

    @property
    def snapshot(self) -> Path:
        """The files as they were at the submit: edits made later cannot change a second attempt."""
        return self.path / "workdir"

    @property
    def spool(self) -> Path:
        """Where workers leave reports; outlives placements."""
        return self.path / "spool"

    @property
    def log(self) -> Path:
        """What the supervisor and its guards printed: nothing, unless Holdfast has a bug."""
        return self.path / "supervisor.log"

    def create(self) -> None:
        """Make the directory, for its owner alone: nobody knows what programs print."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def node(self, attempt: int, node: int) -> NodeFolder:
        """Where node `node` of attempt `attempt` lives."""
        return NodeFolder(self._attempts / str(attempt) / f"node-{node}")

    def keep_nodes_in(self, folder: Path) -> None:
        """Have the nodes' files in another folder, as a confined job cannot enter this one."""
        with suppress(FileExistsError):
            (self.path / "attempts").symlink_to(folder)

    def keep_group(self, group: str | None) -> None:
        """Note the control group of a confined job, for who finds its supervisor dead."""
        if group:
            with suppress(FileExistsError):
                self._group.symlink_to(group)

    @property
    def group(self) -> ControlGroup | None:
        """The control group of a confined job; None: it has none."""
        return ControlGroup(self._group.readlink()) if self._group.is_symlink() else None

    def has_files(self) -> bool:
        """Whether there is more than the record of the launch."""
        return any(path.name not in RECORD for path in self.path.iterdir())

    def discard_files(self) -> None:
        """Remove all but the record of the launch. For the holder of its lock, once nothing of it runs.

        Raises:
            OSError: some files are still there.
        """
        with suppress(FileNotFoundError):
            shutil.rmtree(
                self._attempts
            )  # Of a confined job in another folder, which the link names until it is gone.
        for path in self.path.iterdir():
            if path.name in RECORD:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def nodes(self) -> list[tuple[int, int]]:
        """Attempt and node of all that ever stood, in order."""
        paths = self._attempts.glob("*/node-*")
        return sorted(
            (int(path.parent.name), int(path.name.removeprefix("node-"))) for path in paths
        )

    def tombstone(self, at: datetime) -> None:
        """Leave the tombstone after which this launch ends, or never begins. The first one stays."""
        self.create()
        text = self.path / f"cancel.{uuid4().hex}"
        text.write_text(at.isoformat())
        with suppress(FileExistsError):
            # A link, so that it is whole or not there: a torn tombstone would have no date.
            os.link(text, self._tombstone)
        text.unlink()

    def entombed_at(self) -> datetime | None:
        """When a cancel was first asked for; None if nobody did."""
        try:
            return datetime.fromisoformat(self._tombstone.read_text())
        except FileNotFoundError:
            return None

    def ask_preemption(self, request: PreemptRequest) -> None:
        """Leave a request for the supervisor."""
        self._requests.mkdir(exist_ok=True)
        write_whole(self._requests / f"{uuid4().hex}.json", json.dumps(asdict(request)))

    def take_preemptions(self, placement: int) -> Iterator[PreemptRequest]:
        """The requests for `placement`; all are gone afterwards, those for others unheard."""
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


def write_whole(path: Path, text: str) -> None:
    """Put `text` at `path`, readable by the folder's owner alone: readers see all of it, or what was there before."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
        if (owner := path.parent.stat().st_uid) != os.geteuid():
            os.fchown(file.fileno(), owner, owner)  # Of a confined job.
        file.write(text)
    draft.replace(path)


def take(path: Path) -> int | None:
    """A descriptor that holds the lock until its last copy is closed; None while somebody else holds it."""
    holder = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(holder)
        return None
    return holder


def is_free(path: Path) -> bool:
    """True when nobody holds the lock."""
    holder = take(path)
    if holder is None:
        return False
    os.close(holder)
    return True
