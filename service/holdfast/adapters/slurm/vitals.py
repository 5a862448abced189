"""What Slurm says of itself."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from holdfast.errors import LauncherUnreachable
from holdfast.ports import Vitals

GUARANTEE: Final = "exactly-once"
"""A launch is looked for by its name, under a lock of its folder, before sbatch is asked."""


def read(text: str, now: datetime) -> Vitals:
    """The vitals in what `phrases.VITALS` has printed: version, seconds, partitions.

    Raises:
        LauncherUnreachable: it is not what Slurm prints.
    """
    version, at_s, *partitions = text.splitlines() or [""]
    if not version.startswith("slurm") or not at_s.isdecimal():
        raise LauncherUnreachable(f"what answers is not Slurm: {version[:80]!r}")
    return Vitals(
        version=version.split(" ")[-1],
        guarantee=GUARANTEE,
        waits_for_us=False,
        clouds=tuple(sorted(set(partitions))),
        clock_skew_s=round(int(at_s) - now.timestamp(), 1),
    )
