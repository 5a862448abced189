"""Policies that the worker and the service share: retention, guarantees, cadence, stalls.

Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class RecoveryMode(StrEnum):
    """What the ranks of other nodes do if ranks are lost."""

    IN_PROCESS = "in_process"
    """They wait in their processes with their state, and continue with ranks that replace the lost ones."""
    RESTART = "restart"
    """They end, and all ranks start again from the newest checkpoint."""


class RetentionOwner(StrEnum):
    """The component that deletes checkpoints outside the retention policy."""

    SERVICE = "service"
    """The service deletes them periodically, by the whole policy; the worker deletes none."""
    WORKER = "worker"
    """The worker deletes old checkpoints after each commit, by their number only.
    So do runs without a service."""


class ConsistencyGuarantee(StrEnum):
    """What a checkpoint store guarantees while two attempts of a job run at once."""

    CONDITIONAL = "conditional"
    OVERWRITES = "overwrites"

    @property
    def description(self) -> str:
        """The guarantee for people, as the predicate of a sentence about the store."""
        if self is ConsistencyGuarantee.CONDITIONAL:
            return (
                "supports conditional writes, so that only one attempt of a job can hold an epoch"
            )
        return (
            "has no conditional writes: if two attempts of a job start at the same moment, "
            "only the service knows which one is older"
        )


class OnFailure(StrEnum):
    """What a run does when it can no longer save checkpoints."""

    STOP = "stop"
    """All ranks exit with `Exit.UNSAVED`.
    Work that cannot be saved costs money and is lost with the node."""
    CONTINUE = "continue"
    """Training continues, and saves are retried."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The checkpoint interval of `auto`, and the measurements that it follows from."""

    interval_s: int
    stall_ms: int
    """How long a checkpoint stalls training."""
    durable_ms: int
    """Time until a checkpoint is durable at full speed, 90th percentile."""
    between_failures_s: int
    """Estimated mean time between failures of the nodes."""
    losses: int
    """Attempts of this job that were interrupted so far."""

    @property
    def description(self) -> str:
        """The interval and its reasons as a sentence for people, without a full stop."""
        attempts = "attempt" if self.losses == 1 else "attempts"
        return (
            f"every {_span(self.interval_s)}: a checkpoint stalls training for {_span(self.stall_ms / 1000)} and is durable "
            f"after {_span(self.durable_ms / 1000)}; the estimated time between failures is {_span(self.between_failures_s)}, "
            f"after {self.losses} interrupted {attempts} so far"
        )


def _span(seconds: float) -> str:
    """Format a duration in ms, s, min or h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds <= 7200 else f"{seconds / 3600:.3g} h"


class CadenceUnit(StrEnum):
    """The unit of a checkpoint cadence."""

    AUTO = "auto"
    SECONDS = "seconds"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class Cadence:
    """When a checkpoint is due: `amount` seconds or steps after the last one; 0 with AUTO."""

    unit: CadenceUnit
    amount: int

    @classmethod
    def parse(cls, text: str) -> Cadence:
        """Parse a cadence: `auto`, `90s`, `15m`, `2h` or `500 steps`.

        Raises:
            ValueError: invalid text; the message lists the accepted forms.
        """
        normalized = text.strip().lower()
        if normalized == "auto":
            return cls(CadenceUnit.AUTO, 0)
        if match := re.fullmatch(r"(\d+)\s*steps?", normalized):
            amount, unit = int(match[1]), CadenceUnit.STEPS
        else:
            amount, unit = _duration_s(normalized), CadenceUnit.SECONDS
        if amount < 1:
            msg = f"{text!r} is not a cadence: write auto, a duration such as 90s, 15m or 2h, or a count such as 500 steps"
            raise ValueError(msg)
        return cls(unit, amount)


def parse_memory_cadence(text: str) -> Cadence | None:
    """Parse how often snapshots are copied into memory: a cadence, or `off` (None: never).

    Raises:
        ValueError: invalid text; the message lists the accepted forms.
    """
    if text.strip().lower() == "off":
        return None
    try:
        return Cadence.parse(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a cadence of snapshots in memory: write auto, off, a duration such as 30s or 2m, "
            "or a count such as 20 steps"
        ) from error


class StallDetection(StrEnum):
    """How the limit for a stall is determined."""

    AUTO = "auto"
    SECONDS = "seconds"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class MaxStall:
    """Maximum time without a step of any rank: `limit_s` seconds; 0 with AUTO and OFF."""

    detection: StallDetection
    limit_s: int

    @classmethod
    def parse(cls, text: str) -> MaxStall:
        """Parse a stall limit: `auto`, `off`, `90s`, `20m` or `2h`.

        Raises:
            ValueError: invalid text; the message lists the accepted forms.
        """
        normalized = text.strip().lower()
        if normalized in {StallDetection.AUTO, StallDetection.OFF}:
            return cls(StallDetection(normalized), 0)
        limit_s = _duration_s(normalized)
        if limit_s < 1:
            raise ValueError(
                f"{text!r} is not a stall limit: write auto, off, or a duration such as 20m or 2h"
            )
        return cls(StallDetection.SECONDS, limit_s)


def _duration_s(normalized: str) -> int:
    """Seconds of `90s`, `15m` or `2h`; 0 if the text is not a duration."""
    match = re.fullmatch(r"(\d+)\s*([smh])", normalized)
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else 0
