"""What is read off a process: time, processor, memory."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Reading:
    """A moment."""

    at_s: float
    cpu_s: float
    """Of this process and of those that it has waited for."""

    @classmethod
    def now(cls) -> Self:
        """This one."""
        used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(time.monotonic(), sum(u.ru_utime + u.ru_stime for u in used))


def resident_bytes() -> int:
    """Memory that this process has now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most that it had since `forget_peak`."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let the peak be what there is now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise KeyError(field)
