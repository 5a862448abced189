"""Control groups of confined jobs: limits for all processes of a job together, and an end that none of them escapes.

cgroup v2 alone, below one folder of its file system that the service makes. Where it cannot, each process of a job is limited
by itself.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "holdfast"
"""Below the root of the file system, where container engines have theirs."""
LIMIT_S: Final = 10.0
"""For killed processes to go. A lower value leaves the groups of a busy machine behind, empty; a higher value holds a launch up."""
PAUSE_S: Final = 0.02

_CONTROLLERS: Final = frozenset({"memory", "pids"})


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Where the groups of this machine's jobs are."""

    folder: Path | None
    """None: there can be none."""
    lack: str = ""
    """Why there can be none."""

    def path(self, key: str) -> str | None:
        """The group of a launch."""
        return str(self.folder / key) if self.folder else None


def open_groups(mounts: Path = Path("/proc/self/mountinfo")) -> ControlGroups:
    """The folder for groups, made ready; or why groups cannot be made here."""
    found = (line.split(" - ") for line in mounts.read_text().splitlines())
    roots = [Path(head.split()[4]) for head, tail in found if tail.split()[0] == "cgroup2"]
    if not roots:
        return ControlGroups(None, "this machine has no cgroup v2")
    folder = roots[0] / FOLDER
    try:
        if absent := _CONTROLLERS - set((roots[0] / "cgroup.controllers").read_text().split()):
            return ControlGroups(
                None, f"its cgroup v2 has no controller {' and '.join(sorted(absent))}"
            )
        _enable(roots[0])
        folder.mkdir(exist_ok=True)
        _enable(folder)
    except OSError as error:
        return ControlGroups(None, f"its cgroup v2 is not for the service to use: {error}")
    return ControlGroups(folder)


def _enable(folder: Path) -> None:
    """Have the controllers count in the groups below a folder."""
    file = folder / "cgroup.subtree_control"
    if absent := _CONTROLLERS - set(file.read_text().split()):
        file.write_text(" ".join(f"+{name}" for name in sorted(absent)))


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The group of one launch."""

    path: Path

    def make(self, *, memory_bytes: int | None, processes: int) -> None:
        """Make it, or set its limits again; None: no limit.

        Raises:
            OSError: it cannot be made this time.
        """
        self.path.mkdir(exist_ok=True)
        with suppress(OSError):  # The account of the job is limited, too.
            (self.path / "pids.max").write_text(str(processes))
        if memory_bytes is None:
            return
        (self.path / "memory.max").write_text(str(memory_bytes))
        # Swap would stretch the limit. Where one process has to go, all of the job go with it.
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with suppress(OSError):  # A kernel may be without either.
                (self.path / name).write_text(value)

    def join(self) -> None:
        """Put this process, and all that it starts, into the group."""
        (self.path / "cgroup.procs").write_text("0")

    @property
    def was_full(self) -> bool:
        """Whether the kernel has killed a process for the limit of memory."""
        try:
            lines = (self.path / "memory.events").read_text().splitlines()
        except OSError:
            return False
        return any(int(count) for name, count in map(str.split, lines) if name == "oom_kill")

    def end(self) -> bool:
        """Kill all processes in it, and remove it; False: some of them have not gone yet."""
        if not self.path.exists():
            return True
        with suppress(
            OSError
        ):  # Linux before 5.14 has no such file; then its guards have killed them.
            (self.path / "cgroup.kill").write_text("1")
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return True
            except OSError:
                time.sleep(PAUSE_S)
            else:
                return True
        return False
