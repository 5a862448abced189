"""What Slurm says of one job, as `scontrol -o show job` prints it with times in seconds.

What Slurm says of itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from holdfast.errors import LauncherUnreachable
from holdfast.ports import EngineInfo

WAITING: Final = frozenset(
    {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
"""States in which a job has no nodes, and may get some."""
STANDING: Final = frozenset(
    {
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
    }
)
PATIENT: Final = frozenset({"None", "BeginTime", "Prolog", "Cleaning", "Priority", "Dependency"})
"""Reasons of waiting that are no lack of nodes: its turn has not come."""
GONE: Final = "GONE"
"""Our word for a job that Slurm has forgotten, and that nobody accounts for."""
_PAIR: Final = re.compile(r"(?:^| )([A-Za-z][A-Za-z:/]*)=(\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job of Slurm, now."""

    state: str
    reason: str = "None"
    restarts: int | None = 0
    """How often it was queued again; None of a job that the controller has forgotten, as accounts do not tell."""
    exit_code: int = 0
    """Of the batch script; 128 + n after signal n."""
    ended_s: int | None = None
    """When it ended, by Slurm's clock; None where it has not, or Slurm does not say."""
    was_suspended: bool = False

    @classmethod
    def parse(cls, line: str) -> Self:
        """The job of one line."""
        words = dict(reversed(_PAIR.findall(line)))  # The first of each name: comments come later.
        code, _, signal = words.get("ExitCode", "0:0").partition(":")
        ended = words.get("EndTime", "")
        return cls(
            state=words.get("JobState", GONE),
            # Behind it may stand nodes, or a sentence.
            reason=re.split(r"\W", words.get("Reason", "None"))[0] or "None",
            restarts=int(words.get("Restarts", "0")),
            exit_code=128 + int(signal) if int(signal or 0) else int(code),
            ended_s=int(ended) if ended.isdecimal() else None,
            was_suspended=words.get("SuspendTime", "None").isdecimal(),
        )

    @classmethod
    def gone(cls, told: str) -> Self:
        """A job that the controller has forgotten; `told` is its state by Slurm's accounts, empty without any.

        It is over whatever they say: where a controller has lost its memory, they have it run for ever.
        """
        state = told.split(" ", maxsplit=1)[0].rstrip("+")
        return cls(state=GONE if not state or state in WAITING | STANDING else state, restarts=None)

    @property
    def is_waiting(self) -> bool:
        """Whether it has no nodes, and may get some."""
        return self.state in WAITING

    @property
    def is_standing(self) -> bool:
        """Whether it has nodes, be it that it is giving them back."""
        return self.state in STANDING


GUARANTEE: Final = "exactly-once"
"""A launch is looked for by its name, under a lock of its folder, before sbatch is asked."""


def read(text: str, now: datetime) -> EngineInfo:
    """The vitals in what `phrases.VITALS` has printed: version, seconds, partitions.

    Raises:
        LauncherUnreachable: it is not what Slurm prints.
    """
    version, at_s, *partitions = text.splitlines() or [""]
    if not version.startswith("slurm") or not at_s.isdecimal():
        raise LauncherUnreachable(f"what answers is not Slurm: {version[:80]!r}")
    return EngineInfo(
        version=version.split(" ")[-1],
        guarantee=GUARANTEE,
        waits_for_us=False,
        clouds=tuple(sorted(set(partitions))),
        clock_skew_s=round(int(at_s) - now.timestamp(), 1),
    )
