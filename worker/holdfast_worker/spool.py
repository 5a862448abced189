"""The spool: reports of one attempt, one JSON line each, waiting until the service has them. Standard library only."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast_worker.moment import now, stamp
from holdfast_worker.wire import Json, Report, ReportKind


def spool_file(directory: Path, attempt: int) -> Path:
    """Where the reports of an attempt wait."""
    return directory / f"attempt-{attempt}.jsonl"


def spooled_attempts(directory: Path) -> list[int]:
    """Attempts that have a spool here, oldest first."""
    names = (re.fullmatch(r"attempt-(\d+)\.jsonl", file.name) for file in directory.glob("*.jsonl"))
    return sorted(int(name[1]) for name in names if name)


def read_spool(file: Path, after: int = 0) -> Iterator[tuple[Report, int]]:
    """Each report from byte `after` on, with the byte where its line ends. A line still being written is left.

    Raises:
        ValueError: a whole line is not a report.
    """
    if not file.exists():
        return
    with file.open("rb") as lines:
        end = lines.seek(after)
        for line in lines:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield Report.parse(line.decode(errors="replace")), end


class Spool:
    """The end of a spool where reports are added. Safe to use from several threads of one process."""

    def __init__(self, directory: Path, attempt: int) -> None:
        """Go on where an earlier process of the same attempt stopped, even if it was killed within a line."""
        directory.mkdir(parents=True, exist_ok=True)
        self._attempt = attempt
        self._file = spool_file(directory, attempt)
        self._lock = threading.Lock()
        _cut_torn_line(self._file)
        self._n = max((report.n for report, _ in read_spool(self._file)), default=0)

    def append(self, kind: ReportKind, body: Mapping[str, Json]) -> None:
        """Write a report as of now. A whole line in one write: a reader never sees lines mixed up.

        Raises:
            OSError: it could not be written, and is not there in part either.
        """
        with self._lock:
            report = Report(self._attempt, self._n + 1, stamp(now()), kind, body)
            line = f"{report.line()}\n".encode()
            with self._file.open("ab", buffering=0) as lines:
                start = lines.tell()
                if lines.write(line) < len(line):
                    lines.truncate(start)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._file))
            self._n += 1


def _cut_torn_line(file: Path) -> None:
    if not file.exists():
        return
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with file.open("rb+") as lines:
            lines.truncate(whole)
