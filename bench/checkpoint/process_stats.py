"""Wall time, CPU time and memory of a process."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement."""

    at_s: float
    cpu_s: float
    """CPU time of this process and its terminated child processes."""

    @classmethod
    def now(cls) -> Self:
        """Measure now."""
        used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(time.monotonic(), sum(u.ru_utime + u.ru_stime for u in used))


def resident_bytes() -> int:
    """Resident memory of this process."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """Peak of resident memory since `forget_peak`."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Reset the peak to the current memory."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise KeyError(field)
