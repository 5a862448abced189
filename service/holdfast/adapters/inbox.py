"""Reports that workers left in their launch directories, on this machine or in a folder that it shares with theirs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_worker.wire import Report

from holdfast.errors import LauncherUnreachable

LONGEST_GAP: Final = 10
"""Launches in a row that never began, so that they have no directory. A lower value may miss the reports after them; a higher
value looks for directories in vain."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place in a spool: right after report number `n`. It stays right, as spools are only ever appended to."""

    n: int
    offset: int


_START: Final = _Mark(0, 0)


class SpoolInbox:
    """The spools below some directories: `launches/<job>-<launch>/spool/attempt-<n>.jsonl`.

    What it remembers only saves reading: the caller's `seen` decides what is new, after a restart as before.
    """

    def __init__(self, *homes: Path) -> None:
        self._launches = [home / "launches" for home in homes]
        self._marks: dict[Path, _Mark] = {}

    def take(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        """Reports of a job not seen yet, in order of attempt and n. `seen` is the highest n taken, by attempt.

        A spool is read up to a gap or a torn line: what comes after it is taken once the worker has closed it.

        Raises:
            LauncherUnreachable: a spool cannot be read this time.
        """
        try:
            for attempt, path in sorted(self._spools(job_id)):
                yield from self._news(path, attempt, seen.get(attempt, 0))
        except OSError as error:
            raise LauncherUnreachable(f"reports of workers cannot be read: {error}") from error

    def _spools(self, job_id: str) -> Iterator[tuple[int, Path]]:
        for launch in itertools.chain.from_iterable(
            _folders(home, job_id) for home in self._launches
        ):
            for path in (launch / "spool").glob("attempt-*.jsonl"):
                if match := re.fullmatch(r"attempt-(\d+)", path.stem):
                    yield int(match[1]), path

    def _news(self, path: Path, attempt: int, seen: int) -> Iterator[Report]:
        mark = self._marks.get(path, _START)
        if mark.n > seen:
            mark = _START  # Not everything that was given was kept.
        if mark.offset == path.stat().st_size:
            return
        with path.open("rb") as spool:
            spool.seek(mark.offset)
            for line in spool:
                report = _whole_report(line, attempt)
                if report is None or report.n > max(mark.n, seen) + 1:
                    return
                mark = _Mark(report.n, mark.offset + len(line))
                self._marks[path] = mark
                if report.n > seen:
                    yield report


def _folders(launches: Path, job_id: str) -> Iterator[Path]:
    """The directories of a job's launches, however many there are. To list all jobs' directories takes longer."""
    last = 0
    for number in itertools.count(1):
        folder = launches / f"{job_id}-{number}"
        if folder.is_dir():
            last = number
            yield folder
        elif number - last > LONGEST_GAP:
            return


def _whole_report(line: bytes, attempt: int) -> Report | None:
    """The report of a line, or None while the line is torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        report = Report.parse(line.decode())
    except ValueError:
        return None
    return report if report.attempt == attempt else None
