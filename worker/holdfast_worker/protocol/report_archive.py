"""Parcels: reports that a worker leaves in the checkpoint store, as it does not reach the service. Standard library only.

    inbox/attempt-3/000000000001-000000000057           reports 1 to 57 of a placement that its launcher numbered
    inbox/9f31c2d4.../000000000058-000000000110         reports 58 to 110 of an incarnation

A parcel is the lines of a spool behind a first line about its sender. It is written once and never changed. Its reports are
numbered as in the spool; of an incarnation only the service knows which numbers they have in the job.

The worker writes parcels, and the service takes them away; both import this module, so that they cannot drift apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from holdfast_worker.protocol.checkpoint_keys import INBOX
from holdfast_worker.protocol.reports import Report

LONGEST_BYTES: Final = 1024 * 1024
"""Of a parcel. Longer holds more of the service's memory, shorter makes more parcels of a long silence."""
_ATTEMPTS: Final = 10**9
"""All numbers of attempts are below, as keys have nine digits for them. Bigger: the service's database cannot hold them."""
_REPORTS: Final = 10**12
"""The same of reports, with twelve digits."""


@dataclass(frozen=True, slots=True)
class ArchiveKey:
    """What the key of a parcel says."""

    sender: str
    """`attempt-<n>`, or the name of an incarnation."""
    first: int
    """Number of its first report in the spool of its sender."""
    last: int

    @property
    def key(self) -> str:
        """Where the parcel is. Keys of a sender sort as its parcels follow one another."""
        return f"{INBOX}{self.sender}/{self.first:012d}-{self.last:012d}"

    @classmethod
    def of_key(cls, key: str) -> Self | None:
        """The label that a key is; None if it is nothing of ours."""
        match = re.fullmatch(
            rf"{INBOX}(attempt-[1-9][0-9]{{0,8}}|[0-9a-f]{{1,64}})/([0-9]{{12}})-([0-9]{{12}})", key
        )
        if not match or not 0 < int(match[2]) <= int(match[3]):
            return None
        return cls(match[1], int(match[2]), int(match[3]))

    @property
    def attempt(self) -> int | None:
        """The attempt that the launcher gave to the sender; None for an incarnation."""
        _, numbered, digits = self.sender.partition("attempt-")
        return int(digits) if numbered else None


def sender_of(attempt: int) -> str:
    """What a placement is called that its launcher numbered."""
    return f"attempt-{attempt}"


@dataclass(frozen=True, slots=True)
class ReportArchive:
    """Some reports of one sender, numbered as in its spool, without gaps."""

    label: ArchiveKey
    place: tuple[int, int] | None
    """The attempt that the service gave to the sender, and how many reports of it others had sent before; None while
    the service did not answer."""
    reports: Sequence[Report]

    @classmethod
    def of(cls, sender: str, place: tuple[int, int] | None, reports: Sequence[Report]) -> Self:
        """The parcel of some reports, of which there is one at least."""
        return cls(ArchiveKey(sender, reports[0].n, reports[-1].n), place, reports)

    def dump(self) -> bytes:
        """The object."""
        attempt, before = self.place or (None, None)
        head = {"sender": self.label.sender, "attempt": attempt, "before": before}
        lines = [json.dumps(head, separators=(",", ":")), *(r.line() for r in self.reports)]
        return "".join(f"{line}\n" for line in lines).encode()

    @classmethod
    def parse(cls, label: ArchiveKey, data: bytes) -> Self:
        """The parcel that stands under a label.

        Raises:
            ValueError: it is torn, or not the one that the label names; the message says how.
        """
        head, *lines = data.decode(errors="replace").split("\n")
        if not lines or lines.pop():
            raise ValueError("it ends within a line")
        reports = [Report.parse(line) for line in lines]
        # What a label claims is counted against what is there: as a list it could be longer than memory.
        is_counted = all(report.n == n for n, report in enumerate(reports, label.first))
        if not is_counted or len(reports) != label.last - label.first + 1:
            raise ValueError(f"it does not hold the reports {label.first} to {label.last}")
        try:
            said = json.loads(head)
            sender, attempt, before = said["sender"], said["attempt"], said["before"]
            place = None if attempt is None else (int(attempt), int(before))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"its first line is not that of a parcel: {head[:80]!r}") from error
        if place and not (0 < place[0] < _ATTEMPTS and 0 <= place[1] < _REPORTS):
            raise ValueError(f"its first line names a place that cannot be: {head[:80]!r}")
        if sender != label.sender:
            raise ValueError(f"it is of {str(sender)[:80]!r}")
        return cls(label, place, reports)


def numbered(reports: Iterable[Report], attempt: int, before: int) -> list[Report]:
    """The reports under the numbers that they have in the job."""
    return [replace(report, attempt=attempt, n=report.n + before) for report in reports]
