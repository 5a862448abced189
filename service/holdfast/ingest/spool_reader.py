"""Reads reports from launch directories on this machine or in a shared directory.

Jobs can write to these directories. No link is followed on the way to a report, and only regular
files are opened. Everything else is skipped and logged: an exception would keep the reconciler from
enforcing the limits of the job.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from holdfast_worker.protocol.reports import Report
from holdfast_worker.protocol.spool_segments import (
    MAX_RETAINED_BYTES,
    START,
    Segment,
    SpoolPosition,
    by_attempt,
    removable,
    segments_after,
)

from holdfast.errors import LauncherUnreachable
from holdfast.host.untrusted_files import opened_file, opened_folder

log = logging.getLogger(__name__)

LONGEST_GAP: Final = 10
"""Consecutive launches that never started, and so have no directory. A lower value may miss the
reports after them; a higher value adds lookups."""
LONGEST_LINE_BYTES: Final = 4 * 1024 * 1024
"""Maximum length of a report. A lower value rejects reports of earlier worker versions; a higher
value lets a job use more of the service's memory."""
MOST_FILES: Final = 10_000
"""Directory entries read at once. A lower value may miss reports after a long outage of the
service, with a file for each MiB; a higher value lets a job slow down the reconciler."""
MOST_OPENED: Final = 1000
"""Files opened by one read; the next read continues. A lower value needs more reads after a long
outage; a higher value lets a job slow down the reconciler."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of reports returned by one read; the next read continues. At one report a second, about
four days. A lower value may record the end of a job before its last reports; a higher value lets
a job fill the memory of the service."""
_TRANSIENT_ERRORS: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)  # fmt: skip
"""Errors that a job cannot cause: temporary ones of a network file system, or of this process."""


@dataclass(slots=True)
class _Budget:
    """How much the current read may still read."""

    files: int
    size_bytes: int

    def is_spent(self) -> bool:
        """Whether no further file may be opened."""
        return self.files <= 0 or self.size_bytes <= 0


@dataclass(frozen=True, slots=True)
class _Folder:
    """The listed spools of one launch."""

    launches: Path
    launch: str
    segments: Mapping[int, list[Segment]]
    """By attempt, oldest first."""
    newest_bytes: Mapping[int, int]
    """Size of the newest segment, by attempt."""
    is_whole: bool
    """Whether all entries of the directory were read."""

    def parts(self, segment: Segment) -> tuple[str, ...]:
        """The names on the way from `launches` to a segment."""
        return self.launch, "spool", segment.name


class SpoolReader:
    """Reads the spools `launches/<job>-<launch>/spool/attempt-<n>*.jsonl` in some directories.

    Its state only saves reads: the caller's `seen` decides which reports are new, also after a
    restart. It removes segments whose reports were all seen: workers without a connection to the
    service receive no acknowledgement.
    """

    def __init__(self, *homes: Path) -> None:
        self._launches = [home / "launches" for home in homes]
        self._positions: dict[tuple[Path, str, int], SpoolPosition] = {}
        self._trimmed: dict[tuple[Path, str], Segment] = {}
        """The newest segment of a folder when segments were last removed from it."""
        self._refused: set[tuple[Path, str, str]] = set()

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        """Read new reports of a job, in order of attempt and number.

        `seen` is the highest number by attempt. A spool is read up to a gap or a partial line; the
        reports after it follow once the worker has closed the file. If the reports after `seen`
        were removed, the first report of an attempt is the oldest one left.

        Raises:
            LauncherUnreachable: a spool cannot be read at the moment.
        """
        try:
            folders = [folder for home in self._launches for folder in self._folders(home, job_id)]
            spools = [(attempt, folder) for folder in folders for attempt in folder.segments]
            budget = _Budget(MOST_OPENED, MOST_BYTES)
            for attempt, folder in sorted(spools, key=lambda spool: spool[0]):
                yield from self._new_reports(folder, attempt, seen.get(attempt, 0), budget)
        except OSError as error:
            raise LauncherUnreachable(f"reports of workers cannot be read: {error}") from error
        for folder in folders:
            self._trim(folder, seen)

    def _folders(self, launches: Path, job_id: str) -> Iterator[_Folder]:
        """The directories of a job's launches.

        Listing the directories of all jobs would take longer.
        """
        last = 0
        for number in itertools.count(1):
            launch = f"{job_id}-{number}"
            if (launches / launch).is_dir():
                last = number
                if folder := self._listed(launches, launch):
                    yield folder
            elif number - last > LONGEST_GAP:
                return

    def _listed(self, launches: Path, launch: str) -> _Folder | None:
        try:
            with opened_folder(launches, (launch, "spool")) as spool, os.scandir(spool) as entries:
                names = [entry.name for entry in itertools.islice(entries, MOST_FILES)]
                is_whole = next(entries, None) is None
                segments = by_attempt(names)
                sizes = {attempt: _size(some[-1], spool) for attempt, some in segments.items()}
        except OSError as error:
            self._log_or_raise(launches, launch, "spool", error)
            return None
        if not is_whole:
            self._log_once(launches, launch, "spool", f"it has more than {MOST_FILES} files")
        return _Folder(launches, launch, segments, sizes, is_whole)

    def _new_reports(
        self, folder: _Folder, attempt: int, seen: int, budget: _Budget
    ) -> Iterator[Report]:
        key, segments = (folder.launches, folder.launch, attempt), folder.segments[attempt]
        position = self._positions.get(key, START)
        if position.n > seen:
            position = SpoolPosition(seen)  # The caller did not record all reports it received.
        elif position.offset_in(segments[-1]) == folder.newest_bytes[attempt] > 0:
            return
        position, is_after_first = replace(position, n=seen), False
        # Listed before the first one is read: a segment with a later one was closed by then, and is
        # read to its end.
        for segment in segments_after(segments, seen):
            may_skip = folder.is_whole and not is_after_first
            if (segment.first > position.n + 1 and not may_skip) or budget.is_spent():
                return
            budget.files -= 1
            try:
                with opened_file(folder.launches, folder.parts(segment)) as file:
                    start = position.offset_in(segment)
                    for report, end in _reports(file, start, attempt):
                        if report.n > position.n + 1 and not (
                            may_skip and report.n == segment.first
                        ):
                            return
                        is_new = report.n > position.n
                        position = SpoolPosition(max(position.n, report.n), segment.first, end)
                        self._positions[key] = position
                        if is_new:
                            is_after_first = True
                            yield report
                        budget.size_bytes, start = budget.size_bytes - (end - start), end
                        if budget.size_bytes <= 0:
                            return
            except OSError as error:
                self._log_or_raise(folder.launches, folder.launch, segment.name, error)
                return

    def _trim(self, folder: _Folder, seen: Mapping[int, int]) -> None:
        """Remove acknowledged segments, once for each new segment."""
        key = folder.launches, folder.launch
        found = list(itertools.chain.from_iterable(folder.segments.values()))
        newest = max(found, default=None)
        if newest is None or self._trimmed.get(key) == newest:
            return
        self._trimmed[key] = newest
        # The next new segment triggers a retry.
        with (
            suppress(OSError),
            opened_folder(folder.launches, (folder.launch, "spool")) as spool,
        ):
            sizes = {
                each: os.stat(each.name, dir_fd=spool, follow_symlinks=False).st_size
                for each in found
            }
            for segment in removable(sizes, seen, MAX_RETAINED_BYTES):
                os.unlink(segment.name, dir_fd=spool)

    def _log_or_raise(self, launches: Path, launch: str, name: str, error: OSError) -> None:
        """Log what is permanently skipped; raise temporary errors. A removed file is neither."""
        if error.errno in _TRANSIENT_ERRORS:
            raise error
        if error.strerror != os.strerror(errno.ENOENT):
            self._log_once(launches, launch, name, str(error))

    def _log_once(self, launches: Path, launch: str, name: str, why: str) -> None:
        if (launches, launch, name) not in self._refused:
            self._refused.add((launches, launch, name))
            log.warning("%s: %s is skipped: %s", launch, name, why)


def _size(segment: Segment, folder: int) -> int:
    """Size of a segment; 0 if it is gone."""
    try:
        return os.stat(segment.name, dir_fd=folder, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _reports(file: BinaryIO, start: int, attempt: int) -> Iterator[tuple[Report, int]]:
    """Read the reports of a segment, each with the end of its line, up to a partial line.

    Raises:
        OSError: a line is too long, or it is not a report.
    """
    end = file.seek(start)
    while (line := file.readline(LONGEST_LINE_BYTES + 1)).endswith(b"\n"):
        end += len(line)
        try:
            report = Report.parse(line.decode())
        except ValueError as error:
            raise OSError(errno.EBADMSG, f"byte {end - len(line)}: {error}") from error
        if report.attempt != attempt:
            raise OSError(errno.EBADMSG, f"report {report.n} is of attempt {report.attempt}")
        yield report, end
    if len(line) > LONGEST_LINE_BYTES:
        raise OSError(errno.EMSGSIZE, f"a line has more than {LONGEST_LINE_BYTES} bytes")
