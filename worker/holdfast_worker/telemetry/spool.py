"""The spool: reports of one attempt, one JSON line each, until the service has them.

Standard library only.

It consists of segments, so that acknowledged reports can be removed; `protocol.spool_segments` describes names and rule.
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
    MAX_RETAINED_BYTES,
    SEGMENT_BYTES,
    START,
    Segment,
    SpoolPosition,
    by_attempt,
    removable,
    segments_after,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """Limits of a batch of reports."""

    max_reports: int
    max_bytes: int

    def first_batch(self, waiting: Iterator[tuple[Report, T]]) -> Iterator[tuple[Report, T]]:
        """As many reports as fit, at least one if there is any; each with its companion value."""
        room_bytes = self.max_bytes
        for report, position in itertools.islice(waiting, self.max_reports):
            limited = self._without_oversized_body(report)
            room_bytes -= len(limited.line()) + 1
            if room_bytes < 0:
                return
            yield limited, position

    def _without_oversized_body(self, report: Report) -> Report:
        """The report, without its content if it is too long: later reports need its number."""
        size_bytes = len(report.line()) + 1
        if size_bytes <= self.max_bytes:
            return report
        log_info(
            f"report {report.n} ({report.kind}) has {size_bytes} bytes, more than the limit of {self.max_bytes}: "
            "its content is dropped"
        )
        body = {"step": report.body.get("step", 0), "values": {}}
        return replace(report, kind=ReportKind.PROGRESS, body=body)


_BLOCK_BYTES: Final = 64 * 1024
_REMOVED: Final = frozenset({errno.ENOENT, errno.ESTALE})
"""Errors of a read whose file a different process removed.
The second one occurs on a network file system."""


def spool_file(directory: Path, attempt: int) -> Path:
    """The first segment of an attempt, which identifies the whole spool."""
    return directory / Segment(attempt, 1).name


def spooled_attempts(directory: Path) -> list[int]:
    """Attempts with a spool in a directory, oldest first."""
    return list(_segments(directory))


def read_spool(file: Path, after: SpoolPosition = START) -> Iterator[tuple[Report, SpoolPosition]]:
    """Each report after a position, with the position after it.

    Stops at a line that is still being written.

    The reports are consecutive. If the first one does not follow `after`, the reports between them were removed.

    Raises:
        ValueError: a whole line is not a report.
    """
    spool = Segment.of_name(file.name)
    if spool is None:
        raise ValueError(f"{file.name} is not the name of a spool")
    # Listed before the first one is read: a segment followed by a later one is closed, and is read to its end.
    last: int | None = None
    for segment in segments_after(_listed(file.parent, spool.attempt), after.n):
        if last is not None and segment.first != last + 1:
            return
        try:
            for report, position in _read_segment(file.parent, segment, after):
                last = report.n
                yield report, position
        except OSError as error:
            if error.errno not in _REMOVED:
                raise
            # A listed file still has reports, which a skip would lose.
            if last is not None or segment in _listed(file.parent, spool.attempt):
                return


def trim(directory: Path, acknowledged: Mapping[int, int]) -> None:
    """Remove acknowledged segments, given the highest acknowledged number by attempt."""
    # A failure leaves no gap, as the oldest segments are removed first. The next call retries.
    with suppress(OSError):
        found = [each for some in _segments(directory).values() for each in some]
        sizes = {each: (directory / each.name).stat().st_size for each in found}
        for segment in removable(sizes, acknowledged, MAX_RETAINED_BYTES):
            (directory / segment.name).unlink(missing_ok=True)


class Spool:
    """Appends reports to a spool; safe to use from several threads of one process."""

    def __init__(self, directory: Path, attempt: int) -> None:
        """Continue after an earlier process of the attempt, even if it was killed within a line."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._attempt = attempt
        self._lock = threading.Lock()
        self._segment = (_listed(directory, attempt) or [Segment(attempt, 1)])[-1]
        self._size_bytes = _truncate_partial_line(self._file)
        self._has_partial_line = False
        reports = _read_segment(directory, self._segment, START) if self._file.exists() else ()
        self._n = max((report.n for report, _ in reports), default=self._segment.first - 1)

    def append(self, kind: ReportKind, body: Mapping[str, Json]) -> None:
        """Append a report with the current time, in one write, so that lines of writers do not mix.

        Raises:
            OSError: the report could not be written; no part of it is in the spool.
        """
        with self._lock:
            report = Report(self._attempt, self._n + 1, to_iso(now()), kind, body)
            self._write(f"{report.line()}\n".encode(), report.n)
            self._n = report.n

    @property
    def _file(self) -> Path:
        return self._directory / self._segment.name

    def _write(self, line: bytes, n: int) -> None:
        if self._has_partial_line:
            self._size_bytes = _truncate_partial_line(self._file)
            self._has_partial_line = False
        if self._size_bytes and self._size_bytes + len(line) > SEGMENT_BYTES:
            self._segment, self._size_bytes = Segment(self._attempt, n), 0
        with self._file.open("ab", buffering=0) as lines:
            start = lines.tell()
            self._has_partial_line = True  # Until the line is complete or removed.
            if lines.write(line) < len(line):
                lines.truncate(start)
                self._has_partial_line = False
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._file))
            self._has_partial_line = False
            self._size_bytes = start + len(line)


def _segments(directory: Path) -> dict[int, list[Segment]]:
    """The segments in a directory by attempt; empty if the directory does not exist."""
    try:
        return by_attempt(file.name for file in directory.iterdir())
    except FileNotFoundError:
        return {}


def _listed(directory: Path, attempt: int) -> list[Segment]:
    return _segments(directory).get(attempt, [])


def _read_segment(
    directory: Path, segment: Segment, after: SpoolPosition
) -> Iterator[tuple[Report, SpoolPosition]]:
    with (directory / segment.name).open("rb") as lines:
        end = lines.seek(after.offset_in(segment))
        for line in lines:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            report = Report.parse(line.decode(errors="replace"))
            if report.n > after.n:
                yield report, SpoolPosition(report.n, segment.first, end)


def _truncate_partial_line(file: Path) -> int:
    """Remove a partial line at the end of a file, and return the size of the file."""
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
