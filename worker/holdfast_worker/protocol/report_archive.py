"""Report archives: reports that a worker relays through the checkpoint store.

Standard library only.

    inbox/attempt-3/000000000001-000000000057           reports 1 to 57 of an attempt that its launcher numbered
    inbox/9f31c2d4.../000000000058-000000000110         reports 58 to 110 of an incarnation

An archive has a first line about its sender, and lines of a spool. It is immutable. Its reports are numbered as in the
spool; only the service knows which numbers those of an incarnation have in the job.

The worker writes archives, and the service imports and deletes them. Both import this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from holdfast_worker.protocol.checkpoint_keys import INBOX
from holdfast_worker.protocol.reports import Report

MAX_ARCHIVE_BYTES: Final = 1024 * 1024
"""Size of an archive.
A lower value makes more archives in a long outage; a higher value holds more of the service's memory."""
_ATTEMPTS: Final = 10**9
"""Upper bound of attempt numbers, which have nine digits in keys.
The service's database cannot hold a higher one."""
_REPORTS: Final = 10**12
"""Upper bound of report numbers, which have twelve digits in keys."""


@dataclass(frozen=True, slots=True)
class ArchiveKey:
    """The fields in the key of an archive."""

    sender: str
    """`attempt-<n>`, or the name of an incarnation."""
    first: int
    """Number of its first report in the spool of its sender."""
    last: int

    @property
    def path(self) -> str:
        """Key of the archive. Keys of a sender sort by report number."""
        return f"{INBOX}{self.sender}/{self.first:012d}-{self.last:012d}"

    @classmethod
    def of_key(cls, key: str) -> Self | None:
        """Parse the key of an archive; None for keys of a different form."""
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
    """The sender of an attempt that its launcher numbered."""
    return f"attempt-{attempt}"


@dataclass(frozen=True, slots=True)
class ReportArchive:
    """Consecutive reports of one sender, numbered as in its spool."""

    key: ArchiveKey
    offset: tuple[int, int] | None
    """The attempt number of the sender, and the number of the attempt's earlier reports.
    The service assigns both; None until it has responded."""
    reports: Sequence[Report]

    @classmethod
    def from_reports(
        cls, sender: str, offset: tuple[int, int] | None, reports: Sequence[Report]
    ) -> Self:
        """Create the archive of one or more reports."""
        return cls(ArchiveKey(sender, reports[0].n, reports[-1].n), offset, reports)

    def dump(self) -> bytes:
        """Serialize the archive."""
        attempt, before = self.offset or (None, None)
        head = {"sender": self.key.sender, "attempt": attempt, "before": before}
        lines = [json.dumps(head, separators=(",", ":")), *(r.line() for r in self.reports)]
        return "".join(f"{line}\n" for line in lines).encode()

    @classmethod
    def parse(cls, key: ArchiveKey, data: bytes) -> Self:
        """Parse the archive with this key.

        Raises:
            ValueError: it is incomplete, or does not match the key; the message has the reason.
        """
        head, *lines = data.decode(errors="replace").split("\n")
        if not lines or lines.pop():
            raise ValueError("it ends in the middle of a line")
        reports = [Report.parse(line) for line in lines]
        # The numbers in the key are compared without a list of them, which could exceed memory.
        is_counted = all(report.n == n for n, report in enumerate(reports, key.first))
        if not is_counted or len(reports) != key.last - key.first + 1:
            raise ValueError(f"it does not contain the reports {key.first} to {key.last}")
        try:
            header = json.loads(head)
            sender, attempt, before = header["sender"], header["attempt"], header["before"]
            offset = None if attempt is None else (int(attempt), int(before))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"its first line is not an archive header: {head[:80]!r}") from error
        if offset and not (0 < offset[0] < _ATTEMPTS and 0 <= offset[1] < _REPORTS):
            raise ValueError(f"its first line has numbers out of range: {head[:80]!r}")
        if sender != key.sender:
            raise ValueError(f"its sender is {str(sender)[:80]!r}")
        return cls(key, offset, reports)


def renumber(reports: Iterable[Report], attempt: int, before: int) -> list[Report]:
    """The reports with the attempt and report numbers of the job."""
    return [replace(report, attempt=attempt, n=report.n + before) for report in reports]
