"""What a job used of its checkpoint store: stored bytes, requests and moved bytes. Pure.

A checkpoint is stored from its commit until its removal, or until now: also after the job has ended, as long as the retention
policy keeps it. Workers report requests and bytes as counters of each start of their ranks, so that a lost report loses nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage, UsageTotal

from holdfast.domain.billing.allocation import day_of, split_by_day
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


@dataclass(frozen=True, slots=True)
class DatedUsage:
    """Requests and bytes that became known on one day."""

    attempt: int
    """The attempt whose nodes made them; 0 if the service did."""
    day: date
    usage: StoreUsage


@dataclass(frozen=True, slots=True)
class JobStoreUsage:
    """What a job used of its store."""

    place: str
    """Where its workers found the store; empty if they did not say."""
    checkpoints: tuple[StoredCheckpoint, ...]
    reported: tuple[DatedUsage, ...]
    """Requests of the nodes, by attempt and by the day of the report; in the order of the events."""

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> JobStoreUsage:
        """Collect the use from all events of a job, in their order."""
        place = ""
        commits: dict[str, CheckpointCommitted] = {}
        removed_ms: dict[str, int] = {}
        totals: dict[int, UsageTotal] = {}
        reported: defaultdict[tuple[int, date], StoreUsage] = defaultdict(StoreUsage)
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
                total = totals.setdefault(event.attempt, UsageTotal())
                before = total.read()
                total.observe(0, event.store_usage)
                reported[event.attempt, day_of(to_ms(event.at))] += total.read() - before
        return cls(
            place=place,
            checkpoints=tuple(
                StoredCheckpoint(event.size_bytes, to_ms(event.at), removed_ms.get(name))
                for name, event in commits.items()
            ),
            reported=tuple(
                DatedUsage(attempt, day, usage)
                for (attempt, day), usage in reported.items()
                if usage != NO_USAGE
            ),
        )

    @property
    def by_attempt(self) -> Mapping[int, StoreUsage]:
        """Requests of the nodes of each attempt that reported any."""
        used: defaultdict[int, StoreUsage] = defaultdict(StoreUsage)
        for item in self.reported:
            used[item.attempt] += item.usage
        return used

    @property
    def kept_bytes(self) -> int:
        """Bytes of the checkpoints that the store still has."""
        return sum(item.size_bytes for item in self.checkpoints if item.until_ms is None)

    @property
    def changed_ms(self) -> int:
        """When a checkpoint was last committed or removed, in milliseconds since 1970; 0 if never."""
        return max((max(item.since_ms, item.until_ms or 0) for item in self.checkpoints), default=0)

    def byte_ms(self, now_ms: int) -> int:
        """Stored bytes times milliseconds until `now_ms`."""
        return sum(self.byte_ms_by_day(now_ms).values())

    def byte_ms_by_day(self, now_ms: int) -> dict[date, int]:
        """Stored bytes times milliseconds of each day in UTC, until `now_ms`."""
        changes: defaultdict[int, int] = defaultdict(int)
        for item in self.checkpoints:
            if item.until_ms is None or item.until_ms > item.since_ms:
                changes[item.since_ms] += item.size_bytes
                if item.until_ms is not None:
                    changes[item.until_ms] -= item.size_bytes
        days: defaultdict[date, int] = defaultdict(int)
        begin_ms = stored_bytes = 0
        for at_ms, change in [*sorted(changes.items()), (now_ms, 0)]:
            if stored_bytes:
                for day, since_ms, until_ms in split_by_day(begin_ms, min(at_ms, now_ms)):
                    days[day] += stored_bytes * (until_ms - since_ms)
            begin_ms, stored_bytes = at_ms, stored_bytes + change
        return days

    @property
    def newest_bytes(self) -> int:
        """Size of the newest checkpoint; 0 without one."""
        return self.checkpoints[-1].size_bytes if self.checkpoints else 0
