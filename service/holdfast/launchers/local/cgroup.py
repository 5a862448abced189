"""Control groups of confined jobs, with limits and a kill for all processes of a job.

Uses cgroup v2 only, below one directory that the service creates. Where this is not possible, each process of a job is
limited separately.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DIRECTORY: Final = "holdfast"
"""Directory below the root of the cgroup file system, next to those of container engines."""
LIMIT_S: Final = 10.0
"""Time for killed processes to end.
A lower value leaves empty groups behind on a busy machine; a higher value delays launches."""
PAUSE_S: Final = 0.02

_CONTROLLERS: Final = frozenset({"memory", "pids"})


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Location of the control groups of this machine's jobs."""

    folder: Path | None
    """Directory of the groups; None if they are unavailable."""
    unavailable_reason: str = ""
    """Why control groups are unavailable."""

    def path(self, key: str) -> str | None:
        """Return the control group of a launch."""
        return str(self.folder / key) if self.folder else None


def open_groups(mounts: Path = Path("/proc/self/mountinfo")) -> ControlGroups:
    """Prepare the directory for control groups, or return why they are unavailable."""
    found = (line.split(" - ") for line in mounts.read_text().splitlines())
    roots = [Path(head.split()[4]) for head, tail in found if tail.split()[0] == "cgroup2"]
    if not roots:
        return ControlGroups(None, "this machine has no cgroup v2")
    folder = roots[0] / DIRECTORY
    try:
        if absent := _CONTROLLERS - set((roots[0] / "cgroup.controllers").read_text().split()):
            return ControlGroups(
                None, f"cgroup v2 has no controller {' and '.join(sorted(absent))}"
            )
        _enable(roots[0])
        folder.mkdir(exist_ok=True)
        _enable(folder)
    except OSError as error:
        return ControlGroups(None, f"the service cannot use cgroup v2: {error}")
    return ControlGroups(folder)


def _enable(folder: Path) -> None:
    """Enable the controllers for the groups below a directory."""
    file = folder / "cgroup.subtree_control"
    if absent := _CONTROLLERS - set(file.read_text().split()):
        file.write_text(" ".join(f"+{name}" for name in sorted(absent)))


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control group of one launch."""

    path: Path

    def create(self, *, memory_bytes: int | None, processes: int) -> None:
        """Create the group or update its limits; None: no limit.

        Raises:
            OSError: a temporary failure.
        """
        self.path.mkdir(exist_ok=True)
        with suppress(OSError):  # The account of the job is limited as well.
            (self.path / "pids.max").write_text(str(processes))
        if memory_bytes is None:
            return
        (self.path / "memory.max").write_text(str(memory_bytes))
        # Swap would extend the limit. If one process is killed for memory, all processes of the job are.
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with suppress(OSError):  # Some kernels lack one of these files.
                (self.path / name).write_text(value)

    def join(self) -> None:
        """Move this process and its future children into the group."""
        (self.path / "cgroup.procs").write_text("0")

    @property
    def hit_memory_limit(self) -> bool:
        """Whether the kernel killed a process because of the memory limit."""
        try:
            lines = (self.path / "memory.events").read_text().splitlines()
        except OSError:
            return False
        return any(int(count) for name, count in map(str.split, lines) if name == "oom_kill")

    def remove(self) -> bool:
        """Kill all processes in the group and remove it; False if some have not ended yet."""
        if not self.path.exists():
            return True
        with suppress(
            OSError
        ):  # Linux before 5.14 has no such file; there the guards have killed the processes.
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
