"""What the worker and the service say to each other: names, exit codes, reports. Standard library only.

Both sides import this module, so that a worker and the service that launched it cannot drift apart. It is the
only part of the worker that the service may know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class RetentionOwner(StrEnum):
    """Who removes checkpoints that are not to be kept."""

    SERVICE = "service"
    """After a while, and by all of the rule; the worker deletes none."""
    WORKER = "worker"
    """At once after each commit, and by their number alone. Nobody else would, where no service is."""


class ConsistencyGuarantee(StrEnum):
    """What a checkpoint store promises where two placements of a job are alive at once."""

    CONDITIONAL = "conditional"
    OVERWRITES = "overwrites"

    @property
    def words(self) -> str:
        """What it does, for people: the rest of a sentence about it."""
        if self is ConsistencyGuarantee.CONDITIONAL:
            return "keeps the first of two writes, so that no two placements of a job hold the same epoch"
        return (
            "overwrites, so that of two placements of a job that begin within the same moment "
            "the service alone can tell which is the older"
        )


class OnFailure(StrEnum):
    """What a run does when checkpoints cannot be saved any more."""

    STOP = "stop"
    """All ranks leave with `Exit.UNSAVED`: work that cannot be saved costs money and is lost with the node."""
    CONTINUE = "continue"
    """Training goes on and saving is tried again."""


@dataclass(frozen=True, slots=True)
class Interval:
    """How often `auto` saves, and what that follows from."""

    interval_s: int
    stall_ms: int
    """How long training stands still for a checkpoint."""
    durable_ms: int
    """What a checkpoint takes at full speed, nine times in ten or less."""
    between_failures_s: int
    """How long the nodes are reckoned to last."""
    losses: int
    """Placements of this job that were cut short so far."""

    @property
    def words(self) -> str:
        """The same as a sentence for people, without its stop."""
        often = {0: "never", 1: "once"}.get(self.losses, f"{self.losses} times")
        return (
            f"every {_span(self.interval_s)}: a checkpoint stops training for {_span(self.stall_ms / 1000)} and is durable "
            f"after {_span(self.durable_ms / 1000)}; nodes are reckoned to last {_span(self.between_failures_s)}, as the job "
            f"was cut short {often} so far"
        )


def _span(seconds: float) -> str:
    """A duration in the unit that fits."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds <= 7200 else f"{seconds / 3600:.3g} h"


class Rhythm(StrEnum):
    """How the checkpoint cadence is counted."""

    AUTO = "auto"
    SECONDS = "seconds"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class Cadence:
    """When a checkpoint is due: `amount` seconds or steps after the last one; 0 with AUTO, which measures."""

    rhythm: Rhythm
    amount: int

    @classmethod
    def parse(cls, text: str) -> Cadence:
        """The cadence of `auto`, `90s`, `15m`, `2h` or `500 steps`.

        Raises:
            ValueError: none of these; the message says what is accepted.
        """
        words = text.strip().lower()
        if words == "auto":
            return cls(Rhythm.AUTO, 0)
        if match := re.fullmatch(r"(\d+)\s*steps?", words):
            amount, rhythm = int(match[1]), Rhythm.STEPS
        else:
            amount, rhythm = _duration_s(words), Rhythm.SECONDS
        if amount < 1:
            msg = f"{text!r} is not a cadence: write auto, a duration such as 90s, 15m or 2h, or a count such as 500 steps"
            raise ValueError(msg)
        return cls(rhythm, amount)


class Watch(StrEnum):
    """How it is known that a run stands still."""

    AUTO = "auto"
    SECONDS = "seconds"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class MaxStall:
    """How long no rank may make a step: `limit_s` seconds; 0 with AUTO, which measures, and with OFF."""

    watch: Watch
    limit_s: int

    @classmethod
    def parse(cls, text: str) -> MaxStall:
        """The limit of `auto`, `off`, `90s`, `20m` or `2h`.

        Raises:
            ValueError: none of these; the message says what is accepted.
        """
        words = text.strip().lower()
        if words in {Watch.AUTO, Watch.OFF}:
            return cls(Watch(words), 0)
        limit_s = _duration_s(words)
        if limit_s < 1:
            raise ValueError(
                f"{text!r} is no time to stand still: write auto, off, or a duration such as 20m or 2h"
            )
        return cls(Watch.SECONDS, limit_s)


def _duration_s(words: str) -> int:
    """The seconds of `90s`, `15m` or `2h`; 0 of what is no duration."""
    match = re.fullmatch(r"(\d+)\s*([smh])", words)
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else 0
