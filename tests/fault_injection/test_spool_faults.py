"""Spools while everything around them is killed: no report is lost or counted twice, and none is removed unacknowledged."""

from __future__ import annotations

import errno
import io
import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from holdfast.ingest import spool_reader
from holdfast.ingest.spool_reader import SpoolReader
from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.protocol.spool_segments import (
    START,
    Segment,
    SpoolPosition,
    by_attempt,
    removable,
)
from holdfast_worker.telemetry import spool
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.service_client import DeliveryResponse
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file, spooled_attempts, trim
from support.repetitions import FAULT_SEEDS

SEGMENT_BYTES = 600
"""Six reports, about."""
KEPT_BYTES = 4000
MOVES = 250


class Killed(BaseException):
    """The process is gone; nothing of it runs any more."""


@dataclass
class Fate:
    """Draws where a process is killed, and where a disk is full."""

    rng: random.Random
    is_armed: bool = False
    kills: int = 0

    def strike(self, chance: float = 0.02) -> None:
        if self.is_armed and self.rng.random() < chance:
            self.kills += 1
            raise Killed


class Disk(io.FileIO):
    """A file whose writer may be killed within a line, or find the disk full there."""

    fate: Fate

    def write(self, data: Any) -> int:
        part = data[: self.fate.rng.randrange(len(data))]
        if self.fate.is_armed and self.fate.rng.random() < 0.02:
            written = super().write(part)
            if self.fate.rng.random() < 0.5:
                raise OSError(errno.EIO, "the disk failed")
            return written
        try:
            self.fate.strike()
        except Killed:
            super().write(part)
            raise
        written = super().write(data)
        self.fate.strike()
        return written

    def truncate(self, size: int | None = None) -> int:
        self.fate.strike(0.3)
        if self.fate.is_armed and self.fate.rng.random() < 0.3:
            raise OSError(errno.EIO, "the disk failed")
        return super().truncate(size)


@dataclass
class Service:
    """The reports of each attempt in the database of a service, and those that any service acknowledged."""

    fate: Fate
    has: dict[int, dict[int, str]] = field(default_factory=dict)
    backup: dict[int, dict[int, str]] = field(default_factory=dict)
    ever: dict[int, dict[int, str]] = field(default_factory=dict)
    gaps: int = 0

    def marks(self) -> dict[int, int]:
        return {attempt: max(each) for attempt, each in self.has.items() if each}

    def take(self, attempt: int, reports: list[Report], oldest: int | None) -> int:
        """Number that is wanted next, after some reports; the rule is that of `Journal.absorb`."""
        mine, ever = self.has.setdefault(attempt, {}), self.ever.setdefault(attempt, {})
        last = max(mine, default=0)
        for report in reports:
            if report.n == oldest and report.n > last + 1:
                assert set(range(last + 1, report.n)) <= set(ever), (
                    "only acknowledged ones are gone"
                )
                self.gaps += 1
                last = report.n - 1
            if report.n == last + 1:
                last = report.n
                reported = str(report.body["said"])
                assert ever.setdefault(last, reported) == reported, (
                    "a number stands for one report for ever"
                )
                mine[last] = reported
        return last + 1

    def deliver(
        self, attempt: int, reports: list[Report], oldest: int | None = None
    ) -> DeliveryResponse:
        """A delivery over HTTP. Either side may be killed before the answer is there."""
        self.fate.strike()
        if self.fate.is_armed and self.fate.rng.random() < 0.05:
            reports = reports[: self.fate.rng.randrange(len(reports) + 1)]
        wanted = self.take(attempt, reports, oldest)
        self.fate.strike()
        return DeliveryResponse(wanted, None)


class Job:
    """One job whose attempts report into one folder."""

    def __init__(self, home: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fate = Fate(random.Random(seed))
        self.home, self.folder = home, home / "launches" / "job-1" / "spool"
        self.folder.mkdir(parents=True)
        self.service = Service(self.fate)
        self.inbox = SpoolReader(home)
        self.attempt = 1
        self.writer = Spool(self.folder, 1)
        self.said: dict[int, list[str]] = {1: []}
        """Reports whose writer lived to know that they are in the spool."""
        self.ids = map(str, itertools.count())
        self.places: dict[int, SpoolPosition] = {}
        self.slow: Iterator[tuple[Report, SpoolPosition]] = iter(())
        self.last_read = 0

    def move(self) -> None:
        """One operation; its process may be killed in the middle."""
        moves: list[tuple[int, Callable[[], None]]] = [
            (10, self.say),
            (4, self.deliver),
            (4, self.look),
            (4, self.read_slowly),
            (1, self.back_up),
            (1, self.restore),
            (1, self.restart),
            (1, self.begin),
        ]
        [move] = self.rng.choices([deed for _, deed in moves], [weight for weight, _ in moves])
        self.fate.is_armed = True
        try:
            move()
        except Killed:
            self.fate.is_armed = False
            self.check_order()
            self.restart()
        self.fate.is_armed = False

    def say(self) -> None:
        """A rank reports."""
        for _ in range(self.rng.randrange(1, 40)):
            result = next(self.ids)
            try:
                self.writer.append(ReportKind.PROGRESS, {"step": 0, "values": {}, "said": result})
            except OSError:
                continue  # The disk was full, or failed.
            self.said[self.attempt].append(result)

    def deliver(self) -> None:
        """The courier brings what is there, and removes what the service has."""
        courier = ReportSender(self.service, self.folder, self.attempt)  # type: ignore[arg-type]
        courier._closing.set()
        courier._run()

    def look(self) -> None:
        """The service reads the folder itself."""
        marks = self.service.marks()
        reports = list(self.inbox.read_new("job", marks))
        for attempt, group in itertools.groupby(reports, key=lambda report: report.attempt):
            batch = list(group)
            self.service.take(attempt, batch, batch[0].n)
        self.fate.strike()

    def read_slowly(self) -> None:
        """A reader continues where it was, while segments come and go under it."""
        for _ in range(self.rng.randrange(1, 30)):
            found = next(self.slow, None)
            if found is None:
                place = SpoolPosition(self.last_read) if self.last_read else START
                self.slow = read_spool(spool_file(self.folder, 1), place)
                found = next(self.slow, None)
                if found is None:
                    return
                missing = set(range(self.last_read + 1, found[0].n))
                assert missing <= set(self.service.ever.get(1, {}))
            else:
                assert found[0].n == self.last_read + 1, "reports of one reading follow one another"
            self.last_read = found[0].n

    def back_up(self) -> None:
        self.service.backup = {attempt: dict(each) for attempt, each in self.service.has.items()}

    def restore(self) -> None:
        """The service is put back to its backup."""
        self.service.has = {attempt: dict(each) for attempt, each in self.service.backup.items()}

    def restart(self) -> None:
        """All processes begin again."""
        self.inbox = SpoolReader(self.home)
        self.writer = Spool(self.folder, self.attempt)

    def begin(self) -> None:
        """The next attempt begins."""
        self.attempt += 1
        self.said[self.attempt] = []
        self.writer = Spool(self.folder, self.attempt)

    def check_order(self) -> None:
        """Whatever was killed while it removed segments, the rest has no hole."""
        found = by_attempt(path.name for path in self.folder.iterdir())
        for attempt, segments in found.items():
            reports = [report.n for report, _ in read_spool(spool_file(self.folder, attempt))]
            first = segments[0].first
            assert reports == list(range(first, first + len(reports)))
            assert segments[-1].first <= first + len(reports)

    def sizes(self) -> dict[Segment, int]:
        found = by_attempt(path.name for path in self.folder.iterdir())
        each = itertools.chain.from_iterable(found.values())
        return {segment: (self.folder / segment.name).stat().st_size for segment in each}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SEGMENT_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(spool, "MAX_RETAINED_BYTES", KEPT_BYTES)
    monkeypatch.setattr(spool_reader, "MAX_RETAINED_BYTES", KEPT_BYTES)


def arm(fate: Fate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a process that writes or removes a file now and then."""
    open_, remove = Path.open, os.unlink
    disk = type("FatedDisk", (Disk,), {"fate": fate})

    def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode != "ab":
            return open_(path, mode, *args, **kwargs)
        fate.strike()
        file = disk(path, "ab")
        try:
            fate.strike()
        except Killed:
            file.close()
            raise
        return file

    def unlink(path: Any, *args: Any, **kwargs: Any) -> None:
        fate.strike(0.1)
        remove(path, *args, **kwargs)
        fate.strike(0.1)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(os, "unlink", unlink)


@pytest.mark.usefixtures("small")
def test_kills_lose_and_repeat_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = gaps = 0
    for seed in range(FAULT_SEEDS):
        with monkeypatch.context() as patched:
            job = Job(tmp_path / str(seed), seed)
            arm(job.fate, patched)
            for _ in range(MOVES):
                job.move()
        _check(job)
        kills, gaps = kills + job.fate.kills, gaps + job.service.gaps

    assert kills > 10 * FAULT_SEEDS
    assert gaps, "some services were restored from so old a backup that reports are gone"


def _check(job: Job) -> None:
    job.deliver()
    written = {a: [r for r, _ in read_spool(spool_file(job.folder, a))] for a in job.said}
    for attempt, item in job.said.items():
        answer = job.service.ever.get(attempt, {})
        assert list(answer) == list(range(1, len(answer) + 1)), "the service was given each number"
        assert len(set(answer.values())) == len(answer), "and each report under one number"
        assert [each for each in answer.values() if each in set(item)] == item
        kept = {report.n: report.body["said"] for report in written[attempt]}
        assert kept.items() <= answer.items()
    trim(job.folder, job.service.marks())
    sizes = job.sizes()
    newest = [some[-1] for some in by_attempt(each.name for each in sizes).values()]
    assert not list(removable(sizes, job.service.marks(), KEPT_BYTES))
    if Segment(1, 1) not in sizes:
        assert sum(sizes.values()) >= KEPT_BYTES
    assert sum(sizes.values()) <= KEPT_BYTES + SEGMENT_BYTES * (len(newest) + 1)
    assert spooled_attempts(job.folder) == sorted(each.attempt for each in newest)
