"""Segments: the files that hold the reports of one attempt, and the rule by which they are removed. Standard library only.

    spool/attempt-3.jsonl                   reports of attempt 3 from number 1 on
    spool/attempt-3.000000005209.jsonl      its reports from number 5209 on
    spool/attempt-3.000000010417.jsonl      its newest segment, which the worker appends to

A segment is closed once a later one exists, and is never changed after that. The first segment has the name and the format of the
single file of earlier versions: such a file is read as a first segment of any size.

Segments of acknowledged reports are removed, the oldest first. Who removes them depends on how the reports reach the service:

* over HTTP: the worker, by the number in the service's answer to a delivery;
* through the checkpoint store: the worker. The service deletes a relayed object once its reports are in the database, and the worker
  sees that it is gone;
* from a folder that the service reads itself: the service, by the numbers in its database. It has nobody else to acknowledge to,
  and an acknowledgement in the folder would be one more file that a job could forge.

The rule is the same everywhere. It depends on names, sizes and acknowledged numbers alone, so that a worker and a service that
remove segments of one folder at the same time do no harm. A kill between two removals leaves the newest segments without a hole.

The service and the worker both import this module, so that they cannot drift apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, Self

SEGMENT_BYTES: Final = 1024 * 1024
"""Size of a segment, unless a single report is larger. A lower value makes more files; a higher value keeps acknowledged reports
longer, as a segment is removed as a whole."""
KEPT_BYTES: Final = 16 * 1024 * 1024
"""The newest reports of a folder, which stay although they are acknowledged. A service restored from a backup can be given these
again: at one report a second about a day's. A lower value loses more of them; a higher value fills the disk of every launch."""
_NAME: Final = re.compile(r"attempt-(0|[1-9][0-9]{0,8})(?:\.([0-9]{12}))?\.jsonl", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class Segment:
    """One file of a spool."""

    attempt: int
    first: int
    """Number of its first report, also while it is empty."""

    @property
    def name(self) -> str:
        """Name of its file."""
        part = f".{self.first:012d}" if self.first > 1 else ""
        return f"attempt-{self.attempt}{part}.jsonl"

    @classmethod
    def of_name(cls, name: str) -> Self | None:
        """The segment with this file name; None for any other file."""
        match = _NAME.fullmatch(name)
        found = cls(int(match[1]), int(match[2] or 1)) if match else None
        return found if found and found.name == name else None


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a spool: after report `n`. The other two save a search and may be out of date."""

    n: int
    segment: int = 0
    """First number of the segment that holds report `n`."""
    offset: int = 0
    """Where the line of report `n` ends in that segment."""

    def within(self, segment: Segment) -> int:
        """The byte at which to begin in a segment."""
        return self.offset if segment.first == self.segment else 0


START: Final = Place(0)


def onward(segments: Sequence[Segment], n: int) -> Sequence[Segment]:
    """The segments of one attempt from the report after `n` on; all, if that report is older than the oldest."""
    covering = [i for i, segment in enumerate(segments) if segment.first <= n + 1]
    return segments[covering[-1] if covering else 0 :]


def by_attempt(names: Iterable[str]) -> dict[int, list[Segment]]:
    """The segments among some file names, by attempt, each in order."""
    found = sorted(filter(None, map(Segment.of_name, names)))
    return {number: list(group) for number, group in groupby(found, lambda each: each.attempt)}


def removable(
    sizes: Mapping[Segment, int], taken: Mapping[int, int], kept_bytes: int = KEPT_BYTES
) -> Iterator[Segment]:
    """Segments of one folder that may be removed, in the order in which to remove them.

    `taken` is the highest acknowledged number by attempt. The newest segment of each attempt stays whatever its reports: its name
    says which numbers were used.
    """
    gone, newer_bytes = list[Segment](), 0
    newest_first = sorted(sizes, reverse=True)
    for later, segment in pairwise(newest_first):
        newer_bytes += sizes[later]
        is_closed = later.attempt == segment.attempt
        is_taken = later.first - 1 <= taken.get(segment.attempt, 0)
        if is_closed and is_taken and newer_bytes >= kept_bytes:
            gone.append(segment)
    return reversed(gone)
