"""The box: what a job's workers have posted, by sender."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast_worker.protocol.checkpoint_keys import INBOX
from holdfast_worker.protocol.report_archive import LONGEST_BYTES, ArchiveKey, ReportArchive

from holdfast.ports import CheckpointBucket


@dataclass(frozen=True, slots=True)
class StoredArchive:
    """A parcel that lies in a store."""

    label: ArchiveKey
    at: datetime
    """Since when, by our clock."""
    size_bytes: int

    def read(self, depot: CheckpointBucket) -> ReportArchive | None:
        """What is in it; None if it is gone by now.

        Raises:
            ValueError: it is not whole; the message says how.
            DepotUnreachable, DepotRefused: nobody knows.
        """
        if self.size_bytes > LONGEST_BYTES:
            raise ValueError(f"it has {self.size_bytes} bytes, and {LONGEST_BYTES} are allowed")
        data = depot.read(self.label.key)
        return None if data is None else ReportArchive.parse(self.label, data)


@dataclass(frozen=True, slots=True)
class SenderArchives:
    """What one sender posted, in the order of its reports."""

    sender: str
    parcels: Sequence[StoredArchive]

    @property
    def attempt(self) -> int | None:
        """The attempt that the launcher gave to the sender; None: the service gives it one."""
        return self.parcels[0].label.attempt

    @property
    def since(self) -> datetime:
        """When the first of it was there."""
        return min(parcel.at for parcel in self.parcels)


def list_archives(depot: CheckpointBucket, now: datetime) -> list[SenderArchives]:
    """What lies in the box of a job; who posted first comes first.

    Raises:
        DepotUnreachable, DepotRefused: it could not be found out.
    """
    look = depot.look(INBOX)
    # Stores date by a clock of their own.
    ahead = look.at - now
    piles: dict[str, list[StoredArchive]] = {}
    for stored in look.objects:
        if label := ArchiveKey.of_key(stored.key):
            posted = StoredArchive(label, stored.at - ahead, stored.size_bytes)
            piles.setdefault(label.sender, []).append(posted)
    found = [SenderArchives(sender, sorted(some, key=_place)) for sender, some in piles.items()]
    return sorted(found, key=lambda pile: (pile.attempt or 0, pile.since))


def _place(posted: StoredArchive) -> tuple[int, int]:
    return posted.label.first, posted.label.last
