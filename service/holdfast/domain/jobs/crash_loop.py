"""Repeated crashes: how long a restart waits, and which crashes are identical. Pure.

Crashes are identical if exit code and error message are the same apart from values that differ per run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from holdfast.domain.events import CapacityLost, Cause, LeftReason, RanksRestarted, WorkerLeft

_VOLATILE: Final = re.compile(
    r"0x[0-9a-f]+"  # Addresses.
    r"|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b"  # Digests and generated names.
    r"|(?:[a-z]:)?(?:[\\/][\w.@+~-]+)+[\\/]?"  # Paths.
    r"|\d+(?:[.,:]\d+)*",  # Numbers, versions, times of day, sizes.
    re.IGNORECASE,
)

MAX_RESTART_PAUSE_S: Final = 1800.0
"""Maximum pause before a restart. A lower value pays for more attempts; a higher value delays a job whose cause was fixed."""


def restart_pause_s(first_s: float, failures: int) -> float:
    """Return the seconds before the restart after `failures` program failures.

    `first_s` after the first failure, doubled with each further one, up to `MAX_RESTART_PAUSE_S`.
    """
    return min(MAX_RESTART_PAUSE_S, first_s * 2.0 ** min(failures - 1, 16))


@dataclass(frozen=True, kw_only=True, slots=True)
class CrashLoop:
    """The newest crash of a job's program and its number of consecutive repeats.

    A crash is an attempt for which the launcher reported a program failure and the worker an error. One of the two does not
    suffice: a rank that lost its peers also reports an error, and a launcher's message is the same for every failure. A restart of
    ranks on their nodes is also a crash.
    """

    count: int = 0
    """Repeats of the newest crash without a different crash or further checkpoint in between."""
    words: str = ""
    """Exit code and error message of the worker; empty before the first crash."""
    likeness: str = ""
    """Exit code and error message without values that differ per run."""
    counted: int = 0
    """Attempt that was counted last."""
    failed: int = 0
    """Newest attempt for which the launcher reported a program failure."""
    said: int = 0
    """Newest attempt whose worker exited with an error."""
    exit_code: int = 0
    """Exit code of that worker."""
    saying: str = ""
    """Error message of that worker."""

    def after_worker_exit(self, event: WorkerLeft) -> CrashLoop:
        """The state after a worker reported its exit."""
        if event.reason is not LeftReason.FAILED or event.attempt <= self.said:
            return self
        exited = replace(self, said=event.attempt, exit_code=event.exit_code, saying=event.detail)
        return _count_crash(exited)

    def after_loss(self, event: CapacityLost) -> CrashLoop:
        """The state after a launcher reported a capacity loss."""
        if event.cause is not Cause.USER_ERROR or event.attempt <= self.failed:
            return self
        return _count_crash(replace(self, failed=event.attempt))

    def after_restart(self, event: RanksRestarted) -> CrashLoop:
        """The state after ranks started again on their nodes, which is a crash in itself."""
        return _count(self, event.exit_code, event.detail)

    def after_progress(self) -> CrashLoop:
        """The state after a checkpoint beyond all earlier ones."""
        return replace(self, count=0)


def _count_crash(crashes: CrashLoop) -> CrashLoop:
    """Count the newest crash once launcher and worker have reported it."""
    if not crashes.said == crashes.failed > crashes.counted:
        return crashes
    return replace(_count(crashes, crashes.exit_code, crashes.saying), counted=crashes.failed)


def _count(crashes: CrashLoop, exit_code: int, message: str) -> CrashLoop:
    likeness = f"{exit_code} {normalised(message)}"
    return replace(
        crashes,
        count=crashes.count + 1 if likeness == crashes.likeness else 1,
        words=f"exit code {exit_code}: {message}",
        likeness=likeness,
    )


def normalised(words: str) -> str:
    """The message without numbers, addresses and paths, so that repeated crashes compare equal."""
    return " ".join(_VOLATILE.sub("#", words).split())
