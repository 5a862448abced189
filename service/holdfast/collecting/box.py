"""The box: what a job's workers have posted, by sender."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast_worker.names import INBOX
from holdfast_worker.parcel import LONGEST_BYTES, Label, Parcel

from holdfast.ports import Depot


@dataclass(frozen=True, slots=True)
class Posted:
    """A parcel that lies in a store."""

    label: Label
    at: datetime
    """Since when, by our clock."""
    size_bytes: int

    def read(self, depot: Depot) -> Parcel | None:
        """What is in it; None if it is gone by now.

        Raises:
            ValueError: it is not whole; the message says how.
            DepotUnreachable, DepotRefused: nobody knows.
        """
        if self.size_bytes > LONGEST_BYTES:
            raise ValueError(f"it has {self.size_bytes} bytes, and {LONGEST_BYTES} are allowed")
        data = depot.read(self.label.key)
        return None if data is None else Parcel.parse(self.label, data)


@dataclass(frozen=True, slots=True)
class Pile:
    """What one sender posted, in the order of its reports."""

    sender: str
    parcels: Sequence[Posted]

    @property
    def attempt(self) -> int | None:
        """The attempt that the launcher gave to the sender; None: the service gives it one."""
        return self.parcels[0].label.attempt

    @property
    def since(self) -> datetime:
        """When the first of it was there."""
        return min(parcel.at for parcel in self.parcels)


def look_into(depot: Depot, now: datetime) -> list[Pile]:
    """What lies in the box of a job; who posted first comes first.

    Raises:
        DepotUnreachable, DepotRefused: it could not be found out.
    """
    look = depot.look(INBOX)
    # Stores date by a clock of their own.
    ahead = look.at - now
    piles: dict[str, list[Posted]] = {}
    for stored in look.objects:
        if label := Label.of_key(stored.key):
            posted = Posted(label, stored.at - ahead, stored.size_bytes)
            piles.setdefault(label.sender, []).append(posted)
    found = [Pile(sender, sorted(some, key=_place)) for sender, some in piles.items()]
    return sorted(found, key=lambda pile: (pile.attempt or 0, pile.since))


def _place(posted: Posted) -> tuple[int, int]:
    return posted.label.first, posted.label.last
