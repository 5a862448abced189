"""Crashes that are the same one: by exit code and last words, without what differs from one try to the next. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from holdfast.domain.events import CapacityLost, Cause, LeftReason, WorkerLeft

_VOLATILE: Final = re.compile(
    r"0x[0-9a-f]+"  # Addresses.
    r"|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b"  # Digests, and names that a machine has drawn.
    r"|(?:[a-z]:)?(?:[\\/][\w.@+~-]+)+[\\/]?"  # Paths.
    r"|\d+(?:[.,:]\d+)*",  # Numbers, versions, times of day, sizes.
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CrashLoop:
    """The newest crash of a job's program, and how often it has come in a row.

    A crash is an attempt of which the launcher said that the program itself had failed, and whose worker left last
    words. One of the two alone is none: of a rank that lost its peers the words sound like a failure, and a launcher's
    own words are the same for every failure.
    """

    count: int = 0
    """How often the newest has come without another one, or a checkpoint further, in between."""
    words: str = ""
    """Its exit code, and what its worker said; empty before the first."""
    likeness: str = ""
    """Its exit code, and what was said without what differs from one try to the next."""
    counted: int = 0
    """Attempt that was counted last."""
    failed: int = 0
    """Newest attempt of which the launcher said that the program had failed."""
    said: int = 0
    """Newest attempt whose worker left with an error."""
    exit_code: int = 0
    """With which that worker left."""
    saying: str = ""
    """What it said."""

    def after_words(self, event: WorkerLeft) -> CrashLoop:
        """The same once a worker has told why it left."""
        if event.reason is not LeftReason.FAILED or event.attempt <= self.said:
            return self
        said = replace(self, said=event.attempt, exit_code=event.exit_code, saying=event.detail)
        return _counted(said)

    def after_loss(self, event: CapacityLost) -> CrashLoop:
        """The same once a launcher has told why nodes are gone."""
        if event.cause is not Cause.USER_ERROR or event.attempt <= self.failed:
            return self
        return _counted(replace(self, failed=event.attempt))

    def after_progress(self) -> CrashLoop:
        """The same once there is a checkpoint that is further than all before it."""
        return replace(self, count=0)


def _counted(crashes: CrashLoop) -> CrashLoop:
    """The same with its newest crash, once both have spoken of it."""
    if not crashes.said == crashes.failed > crashes.counted:
        return crashes
    likeness = f"{crashes.exit_code} {normalised(crashes.saying)}"
    return replace(
        crashes,
        count=crashes.count + 1 if likeness == crashes.likeness else 1,
        words=f"exit code {crashes.exit_code}: {crashes.saying}",
        likeness=likeness,
        counted=crashes.failed,
    )


def normalised(words: str) -> str:
    """The words without numbers, addresses and paths, so that the same crash reads the same at every try."""
    return " ".join(_VOLATILE.sub("#", words).split())
