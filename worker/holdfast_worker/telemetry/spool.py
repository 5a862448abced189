"""Batches: as many reports of a spool as go together. Standard library only.

The spool: reports of one attempt, one JSON line each, waiting until the service has them. Standard library only.

It is kept in segments, so that acknowledged reports can be removed; `segments` describes names and rule.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from holdfast_worker.clock import now, to_iso
from holdfast_worker.console import log_info
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from holdfast_worker.protocol.spool_segments import (
    KEPT_BYTES,
    SEGMENT_BYTES,
    START,
    Place,
    Segment,
    by_attempt,
    onward,
    removable,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """How much goes together."""

    most: int
    """Reports."""
    most_bytes: int

    def first_of(self, waiting: Iterator[tuple[Report, T]]) -> Iterator[tuple[Report, T]]:
        """As many reports as fit, each with what came with it; never none if there is one."""
        room_bytes = self.most_bytes
        for report, place in itertools.islice(waiting, self.most):
            bearable = self._bearable(report)
            room_bytes -= len(bearable.line()) + 1
            if room_bytes < 0:
                return
            yield bearable, place

    def _bearable(self, report: Report) -> Report:
        """The report, or one without content where it is too long: its number has to be taken, or no later one would be."""
        size_bytes = len(report.line()) + 1
        if size_bytes <= self.most_bytes:
            return report
        log_info(
            f"report {report.n} ({report.kind}) has {size_bytes} bytes, and {self.most_bytes} are delivered at once: "
            "its content is left out"
        )
        body = {"step": report.body.get("step", 0), "values": {}}
        return replace(report, kind=ReportKind.PROGRESS, body=body)


_BLOCK_BYTES: Final = 64 * 1024
_REMOVED: Final = frozenset({errno.ENOENT, errno.ESTALE})
"""How a read fails whose file another process removed; the second on a network file system."""


def spool_file(directory: Path, attempt: int) -> Path:
    """Where the reports of an attempt begin: the first segment, which stands for the whole spool."""
    return directory / Segment(attempt, 1).name


def spooled_attempts(directory: Path) -> list[int]:
    """Attempts that have a spool here, oldest first."""
    return list(_segments(directory))


def read_spool(file: Path, after: Place = START) -> Iterator[tuple[Report, Place]]:
    """Each report after a place, with the place after itself. A line that is still being written is left.

    The reports follow one another without gaps. If the first is not the one after `after`, those between are no longer there.

    Raises:
        ValueError: a whole line is not a report.
    """
    spool = Segment.of_name(file.name)
    if spool is None:
        raise ValueError(f"{file.name} is not the name of a spool")
    # Listed before the first is read: a segment that has a later one was closed by then, and is read to its end.
    last: int | None = None
    for segment in onward(_listed(file.parent, spool.attempt), after.n):
        if last is not None and segment.first != last + 1:
            return
        try:
            for report, place in _read_segment(file.parent, segment, after):
                last = report.n
                yield report, place
        except OSError as error:
            if error.errno not in _REMOVED:
                raise
            # A file that is listed still has reports: to pass over them would be to lose them.
            if last is not None or segment in _listed(file.parent, spool.attempt):
                return


def trim(directory: Path, taken: Mapping[int, int]) -> None:
    """Remove the segments that the service no longer needs; `taken` is the highest number it has, by attempt."""
    # A failure leaves no hole, as the oldest go first. The next call tries again.
    with suppress(OSError):
        found = [each for some in _segments(directory).values() for each in some]
        sizes = {each: (directory / each.name).stat().st_size for each in found}
        for segment in removable(sizes, taken, KEPT_BYTES):
            (directory / segment.name).unlink(missing_ok=True)


class Spool:
    """The end of a spool where reports are added. Safe to use from several threads of one process."""

    def __init__(self, directory: Path, attempt: int) -> None:
        """Continue where an earlier process of the same attempt stopped, even if it was killed within a line."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._attempt = attempt
        self._lock = threading.Lock()
        self._segment = (_listed(directory, attempt) or [Segment(attempt, 1)])[-1]
        self._size_bytes = _cut_torn_line(self._file)
        self._is_torn = False
        reports = _read_segment(directory, self._segment, START) if self._file.exists() else ()
        self._n = max((report.n for report, _ in reports), default=self._segment.first - 1)

    def append(self, kind: ReportKind, body: Mapping[str, Json]) -> None:
        """Write a report as of now. A whole line in one write: a reader never sees lines mixed up.

        Raises:
            OSError: it could not be written, and is not there in part either.
        """
        with self._lock:
            report = Report(self._attempt, self._n + 1, to_iso(now()), kind, body)
            self._write(f"{report.line()}\n".encode(), report.n)
            self._n = report.n

    @property
    def _file(self) -> Path:
        return self._directory / self._segment.name

    def _write(self, line: bytes, n: int) -> None:
        if self._is_torn:
            self._size_bytes = _cut_torn_line(self._file)
            self._is_torn = False
        if self._size_bytes and self._size_bytes + len(line) > SEGMENT_BYTES:
            self._segment, self._size_bytes = Segment(self._attempt, n), 0
        with self._file.open("ab", buffering=0) as lines:
            start = lines.tell()
            self._is_torn = True  # Until the whole line is there, or nothing of it.
            if lines.write(line) < len(line):
                lines.truncate(start)
                self._is_torn = False
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._file))
            self._is_torn = False
            self._size_bytes = start + len(line)


def _segments(directory: Path) -> dict[int, list[Segment]]:
    """The segments in a folder by attempt; none if there is no such folder."""
    try:
        return by_attempt(file.name for file in directory.iterdir())
    except FileNotFoundError:
        return {}


def _listed(directory: Path, attempt: int) -> list[Segment]:
    return _segments(directory).get(attempt, [])


def _read_segment(
    directory: Path, segment: Segment, after: Place
) -> Iterator[tuple[Report, Place]]:
    with (directory / segment.name).open("rb") as lines:
        end = lines.seek(after.within(segment))
        for line in lines:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            report = Report.parse(line.decode(errors="replace"))
            if report.n > after.n:
                yield report, Place(report.n, segment.first, end)


def _cut_torn_line(file: Path) -> int:
    """Remove the part of a line at the end of a file; the size of the file after that."""
    if not file.exists():
        return 0
    with file.open("rb+") as lines:
        size = lines.seek(0, os.SEEK_END)
        whole = _end_of_lines(lines, size)
        if whole < size:
            lines.truncate(whole)
    return whole


def _end_of_lines(lines: BinaryIO, size: int) -> int:
    """The byte after the last newline."""
    while size:
        start = max(0, size - _BLOCK_BYTES)
        lines.seek(start)
        found = lines.read(size - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        size = start
    return 0
