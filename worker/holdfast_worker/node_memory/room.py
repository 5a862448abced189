"""How much memory this machine has left, within the limits of control groups.

Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

MIN_FREE_SHARE: Final = 0.1
"""Share of all memory that copies of snapshots leave free.
A lower value risks that the kernel ends the program when a script needs a little more; a higher value refuses copies for which there is
room."""

UNLIMITED: Final = 1 << 60
"""A limit of a control group above any machine: the kernel's way to write that there is none."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of this machine, or of the control group of this process if that has less."""

    total_bytes: int
    free_bytes: int
    """Including what the kernel would release, such as its cache of files."""

    @property
    def usable_bytes(self) -> int:
        """How much of it copies of snapshots may take."""
        return max(0, int(self.free_bytes - MIN_FREE_SHARE * self.total_bytes))


def measure_room(root: Path = Path("/")) -> Room:
    """The memory that is left. `root` has `proc` and `sys`."""
    meminfo = (root / "proc/meminfo").read_text()
    machine = Room(_kilobytes(meminfo, "MemTotal"), _kilobytes(meminfo, "MemAvailable"))
    rooms = [machine, *_group_rooms(root)]
    return Room(min(room.total_bytes for room in rooms), min(room.free_bytes for room in rooms))


def _kilobytes(meminfo: str, name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _group_rooms(root: Path) -> list[Room]:
    """What the control groups of this process and all around them allow, in version 2 or 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names = ("memory.max", "memory.current")
            rooms += _rooms_below(root / "sys/fs/cgroup", path, *names)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            rooms += _rooms_below(root / "sys/fs/cgroup/memory", path, *names)
    return rooms


def _rooms_below(top: Path, path: str, limit_name: str, usage_name: str) -> list[Room]:
    rooms = []
    inner = PurePosixPath(path.lstrip("/"))
    # In a container, the path may be one of the machine, which is not visible: the top is the group then.
    for group in {top / each for each in (inner, *inner.parents)}:
        try:
            limit = (group / limit_name).read_text().strip()
            usage = int((group / usage_name).read_text())
            stat = (group / "memory.stat").read_text()
        except (OSError, ValueError):
            continue
        if limit.isdecimal() and int(limit) < UNLIMITED:
            match = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
            cached = int(match[1]) if match else 0
            rooms.append(Room(int(limit), max(0, int(limit) - usage + cached)))
    return rooms
