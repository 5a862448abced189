"""What a job used of its checkpoint store: stored bytes, requests and moved bytes. Pure.

A checkpoint is stored from its commit until its removal, or until now: also after the job has ended, as long as the retention
policy keeps it. Workers report requests and bytes as counters of each start of their ranks, so that a lost report loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage, UsageTotal

from holdfast.domain.billing.rate import to_ms
from holdfast.domain.events import (
    CheckpointCommitted,
    CheckpointsRemoved,
    Event,
    RanksReplaced,
    RanksRestarted,
    RestoreStarted,
    TrainingStarted,
)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A committed checkpoint and how long the store had it."""

    size_bytes: int
    since_ms: int
    until_ms: int | None
    """None: the store still has it, as far as known."""

    def byte_ms(self, now_ms: int) -> int:
        """Stored bytes times milliseconds until `now_ms`."""
        end_ms = now_ms if self.until_ms is None else min(self.until_ms, now_ms)
        return self.size_bytes * max(0, end_ms - self.since_ms)


@dataclass(frozen=True, slots=True)
class JobStoreUsage:
    """What a job used of its store."""

    place: str
    """Where its workers found the store; empty if they did not say."""
    checkpoints: tuple[StoredCheckpoint, ...]
    by_attempt: Mapping[int, StoreUsage]
    """Requests of the nodes of each attempt that reported any."""

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> JobStoreUsage:
        """Collect the use from all events of a job, in their order."""
        place = ""
        commits: dict[str, CheckpointCommitted] = {}
        removed_ms: dict[str, int] = {}
        totals: dict[int, UsageTotal] = {}
        for event in events:
            match event:
                case RestoreStarted(store_place=named):
                    place = named or place
                case CheckpointsRemoved(checkpoints=names, at=at):
                    for name in names:
                        removed_ms.setdefault(name, to_ms(at))
                case CheckpointCommitted(checkpoint=name):
                    commits.setdefault(name, event)
                case (
                    RanksRestarted(attempt=attempt) | RanksReplaced(attempt=attempt, ranks=(0, *_))
                ):
                    # A new process of rank 0 counts from the beginning.
                    totals.setdefault(attempt, UsageTotal()).restart(0)
                case _:
                    pass
            if isinstance(event, CheckpointCommitted | TrainingStarted) and event.store_usage:
                totals.setdefault(event.attempt, UsageTotal()).observe(0, event.store_usage)
        used = {attempt: total.read() for attempt, total in totals.items()}
        return cls(
            place=place,
            checkpoints=tuple(
                StoredCheckpoint(event.size_bytes, to_ms(event.at), removed_ms.get(name))
                for name, event in commits.items()
            ),
            by_attempt={attempt: usage for attempt, usage in used.items() if usage != NO_USAGE},
        )

    def byte_ms(self, now_ms: int) -> int:
        """Stored bytes times milliseconds until `now_ms`."""
        return sum(item.byte_ms(now_ms) for item in self.checkpoints)

    @property
    def newest_bytes(self) -> int:
        """Size of the newest checkpoint; 0 without one."""
        return self.checkpoints[-1].size_bytes if self.checkpoints else 0
