"""Spool segments: files with the reports of one attempt, and the rule for their removal.

Standard library only.

    spool/attempt-3.jsonl                   reports of attempt 3 from number 1 on
    spool/attempt-3.000000005209.jsonl      its reports from number 5209 on
    spool/attempt-3.000000010417.jsonl      its newest segment, which the worker appends to

A segment is closed once a later one exists, and is never changed after that. The first segment has the name and the format of the
single file of earlier versions: such a file is read as a first segment of any size.

Segments of acknowledged reports are removed, the oldest first. The remover depends on how the reports reach the service:

* over HTTP: the worker, by the number in the service's response to a delivery;
* through the checkpoint store: the worker. The service deletes a relayed object once its reports are in the database, and the worker
  sees the deletion;
* from a directory that the service reads itself: the service, by the numbers in its database. An acknowledgement file in the
  directory would be one more file that a job could forge.

The rule is the same in all cases. It depends only on names, sizes and acknowledged numbers, so that a worker and a service can
remove segments of one directory at the same time. A kill between two removals leaves the newest segments without a gap.

The service and the worker both import this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, Self

SEGMENT_BYTES: Final = 1024 * 1024
"""Size of a segment, unless a single report is larger.
A lower value makes more files; a higher value keeps acknowledged reports longer, as a segment is removed as a whole."""
MAX_RETAINED_BYTES: Final = 16 * 1024 * 1024
"""Size of the newest acknowledged reports that a directory keeps.
They are for a service restored from a backup: about a day's at one report a second. A lower value loses more of them; a higher
value fills the disk of every launch."""
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
class SpoolPosition:
    """A position in a spool: after report `n`.

    The other fields save a search and may be out of date.
    """

    n: int
    segment: int = 0
    """First number of the segment that holds report `n`."""
    offset: int = 0
    """Where the line of report `n` ends in that segment."""

    def offset_in(self, segment: Segment) -> int:
        """The byte at which to start reading a segment."""
        return self.offset if segment.first == self.segment else 0


START: Final = SpoolPosition(0)


def segments_after(segments: Sequence[Segment], n: int) -> Sequence[Segment]:
    """The segments of one attempt that begin with the report after `n`.

    All if that report was removed.
    """
    covering = [i for i, segment in enumerate(segments) if segment.first <= n + 1]
    return segments[covering[-1] if covering else 0 :]


def by_attempt(names: Iterable[str]) -> dict[int, list[Segment]]:
    """The segments among some file names, by attempt, each in order."""
    found = sorted(filter(None, map(Segment.of_name, names)))
    return {number: list(group) for number, group in groupby(found, lambda each: each.attempt)}


def removable(
    sizes: Mapping[Segment, int],
    acknowledged: Mapping[int, int],
    kept_bytes: int = MAX_RETAINED_BYTES,
) -> Iterator[Segment]:
    """Segments of one directory that may be removed, in the order of removal.

    `acknowledged` is the highest acknowledged number by attempt. The newest segment of each attempt is always kept, as its name
    records which numbers were used.
    """
    found, newer_bytes = list[Segment](), 0
    newest_first = sorted(sizes, reverse=True)
    for later, segment in pairwise(newest_first):
        newer_bytes += sizes[later]
        is_closed = later.attempt == segment.attempt
        is_acknowledged = later.first - 1 <= acknowledged.get(segment.attempt, 0)
        if is_closed and is_acknowledged and newer_bytes >= kept_bytes:
            found.append(segment)
    return reversed(found)
