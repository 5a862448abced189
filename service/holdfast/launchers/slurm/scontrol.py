"""Parses `scontrol -o show job`, with times in seconds, and Slurm's version."""

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
"""States of a job that has no nodes but may get some."""
ALLOCATED: Final = frozenset(
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
QUEUE_REASONS: Final = frozenset(
    {"None", "BeginTime", "Prolog", "Cleaning", "Priority", "Dependency"}
)
"""Reasons for waiting that are not a lack of capacity: the job's turn has not come."""
FORGOTTEN: Final = "GONE"
"""Holdfast's state for a job unknown to the controller and to accounting."""
_PAIR: Final = re.compile(r"(?:^| )([A-Za-z][A-Za-z:/]*)=(\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """The current state of a job in Slurm."""

    state: str
    reason: str = "None"
    restarts: int | None = 0
    """Number of requeues. None for a job the controller has forgotten.
    Accounting does not report it."""
    exit_code: int = 0
    """Exit code of the batch script; 128 + n after signal n."""
    ended_s: int | None = None
    """End of the job by Slurm's clock; None if it has not ended or Slurm does not report it."""
    was_suspended: bool = False

    @classmethod
    def parse(cls, line: str) -> Self:
        """Parse one line."""
        words = dict(
            reversed(_PAIR.findall(line))
        )  # Keep the first of each name: comments come later.
        code, _, signal = words.get("ExitCode", "0:0").partition(":")
        ended = words.get("EndTime", "")
        return cls(
            state=words.get("JobState", FORGOTTEN),
            # Node names or a sentence may follow.
            reason=re.split(r"\W", words.get("Reason", "None"))[0] or "None",
            restarts=int(words.get("Restarts", "0")),
            exit_code=128 + int(signal) if int(signal or 0) else int(code),
            ended_s=int(ended) if ended.isdecimal() else None,
            was_suspended=words.get("SuspendTime", "None").isdecimal(),
        )

    @classmethod
    def forgotten(cls, accounting_state: str) -> Self:
        """Return a job that the controller has forgotten, by its state in Slurm's accounting.

        `accounting_state` is empty without accounting.

                The job has ended whatever accounting reports: after a controller loses its state, its jobs appear as
                running
        forever.
        """
        state = accounting_state.split(" ", maxsplit=1)[0].rstrip("+")
        return cls(
            state=FORGOTTEN if not state or state in WAITING | ALLOCATED else state, restarts=None
        )

    @property
    def is_waiting(self) -> bool:
        """Whether the job has no nodes but may get some."""
        return self.state in WAITING

    @property
    def has_nodes(self) -> bool:
        """Whether the job has nodes, including while it releases them."""
        return self.state in ALLOCATED


GUARANTEE: Final = "exactly-once"
"""A launch is looked up by name, under the lock of its directory, before sbatch is called."""


def parse_engine_info(text: str, now: datetime) -> EngineInfo:
    """Parse the output of `remote_scripts.ENGINE_INFO`: version, time, partitions.

    Raises:
        LauncherUnreachable: the output is not Slurm's.
    """
    version, at_s, *partitions = text.splitlines() or [""]
    if not version.startswith("slurm") or not at_s.isdecimal():
        raise LauncherUnreachable(f"unexpected output instead of Slurm's version: {version[:80]!r}")
    return EngineInfo(
        version=version.split(" ")[-1],
        guarantee=GUARANTEE,
        waits_for_service=False,
        clouds=tuple(sorted(set(partitions))),
        clock_skew_s=round(int(at_s) - now.timestamp(), 1),
    )
