"""Spools under kills: no report is lost or counted twice; only acknowledged ones are removed."""

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
"""About six reports."""
KEPT_BYTES = 4000
MOVES = 250


class Killed(BaseException):
    """The process was killed."""


@dataclass
class FaultInjector:
    """Draws where a process is killed, and where a disk is full."""

    rng: random.Random
    is_armed: bool = False
    kills: int = 0

    def maybe_kill(self, chance: float = 0.02) -> None:
        if self.is_armed and self.rng.random() < chance:
            self.kills += 1
            raise Killed


class FaultyFile(io.FileIO):
    """A file whose writer may be killed, or find the disk full, within a line."""

    faults: FaultInjector

    def write(self, data: Any) -> int:
        part = data[: self.faults.rng.randrange(len(data))]
        if self.faults.is_armed and self.faults.rng.random() < 0.02:
            spooled = super().write(part)
            if self.faults.rng.random() < 0.5:
                raise OSError(errno.EIO, "the disk failed")
            return spooled
        try:
            self.faults.maybe_kill()
        except Killed:
            super().write(part)
            raise
        spooled = super().write(data)
        self.faults.maybe_kill()
        return spooled

    def truncate(self, size: int | None = None) -> int:
        self.faults.maybe_kill(0.3)
        if self.faults.is_armed and self.faults.rng.random() < 0.3:
            raise OSError(errno.EIO, "the disk failed")
        return super().truncate(size)


@dataclass
class Service:
    """The stored reports of each attempt, and all reports that any service acknowledged."""

    faults: FaultInjector
    stored: dict[int, dict[int, str]] = field(default_factory=dict)
    backup: dict[int, dict[int, str]] = field(default_factory=dict)
    acknowledged: dict[int, dict[int, str]] = field(default_factory=dict)
    gaps: int = 0

    def marks(self) -> dict[int, int]:
        return {attempt: max(each) for attempt, each in self.stored.items() if each}

    def store(self, attempt: int, reports: list[Report], oldest: int | None) -> int:
        """Store reports as `Journal.absorb` does, and return the number of the next expected one."""
        stored, acknowledged = (
            self.stored.setdefault(attempt, {}),
            self.acknowledged.setdefault(attempt, {}),
        )
        last = max(stored, default=0)
        for report in reports:
            if report.n == oldest and report.n > last + 1:
                assert set(range(last + 1, report.n)) <= set(acknowledged), (
                    "only acknowledged ones are gone"
                )
                self.gaps += 1
                last = report.n - 1
            if report.n == last + 1:
                last = report.n
                reported = str(report.body["id"])
                assert acknowledged.setdefault(last, reported) == reported, (
                    "a number always identifies one report"
                )
                stored[last] = reported
        return last + 1

    def deliver(
        self,
        attempt: int,
        reports: list[Report],
        oldest: int | None = None,
        *,
        asks_end: bool = False,
    ) -> DeliveryResponse:
        """Deliver over HTTP. Either side may be killed before the response arrives."""
        assert not asks_end, "there is no tracker"
        self.faults.maybe_kill()
        if self.faults.is_armed and self.faults.rng.random() < 0.05:
            reports = reports[: self.faults.rng.randrange(len(reports) + 1)]
        next_number = self.store(attempt, reports, oldest)
        self.faults.maybe_kill()
        return DeliveryResponse(next_number, None)


class Job:
    """One job whose attempts report to one spool folder."""

    def __init__(self, home: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.faults = FaultInjector(random.Random(seed))
        self.home, self.folder = home, home / "launches" / "job-1" / "spool"
        self.folder.mkdir(parents=True)
        self.service = Service(self.faults)
        self.inbox = SpoolReader(home)
        self.attempt = 1
        self.writer = Spool(self.folder, 1)
        self.returned: dict[int, list[str]] = {1: []}
        """Reports whose writer has returned, by attempt."""
        self.ids = map(str, itertools.count())
        self.places: dict[int, SpoolPosition] = {}
        self.slow_read: Iterator[tuple[Report, SpoolPosition]] = iter(())
        self.last_read = 0

    def move(self) -> None:
        """Apply one random event; its process may be killed in the middle."""
        events: list[tuple[int, Callable[[], None]]] = [
            (10, self.report),
            (4, self.deliver),
            (4, self.collect),
            (4, self.continue_read),
            (1, self.back_up),
            (1, self.restore),
            (1, self.restart),
            (1, self.begin),
        ]
        [move] = self.rng.choices(
            [action for _, action in events], [weight for weight, _ in events]
        )
        self.faults.is_armed = True
        try:
            move()
        except Killed:
            self.faults.is_armed = False
            self.check_order()
            self.restart()
        self.faults.is_armed = False

    def report(self) -> None:
        """Report as a rank."""
        for _ in range(self.rng.randrange(1, 40)):
            result = next(self.ids)
            try:
                self.writer.append(ReportKind.PROGRESS, {"step": 0, "values": {}, "id": result})
            except OSError:
                continue  # The disk was full, or failed.
            self.returned[self.attempt].append(result)

    def deliver(self) -> None:
        """Send the spooled reports, and remove acknowledged ones."""
        sender = ReportSender(self.service, self.folder, self.attempt)  # type: ignore[arg-type]
        sender._closing.set()
        sender._run()

    def collect(self) -> None:
        """Read the spool folder as the service does."""
        marks = self.service.marks()
        reports = list(self.inbox.read_new("job", marks))
        for attempt, group in itertools.groupby(reports, key=lambda report: report.attempt):
            batch = list(group)
            self.service.store(attempt, batch, batch[0].n)
        self.faults.maybe_kill()

    def continue_read(self) -> None:
        """Continue a read while segments are created and removed."""
        for _ in range(self.rng.randrange(1, 30)):
            found = next(self.slow_read, None)
            if found is None:
                place = SpoolPosition(self.last_read) if self.last_read else START
                self.slow_read = read_spool(spool_file(self.folder, 1), place)
                found = next(self.slow_read, None)
                if found is None:
                    return
                missing = set(range(self.last_read + 1, found[0].n))
                assert missing <= set(self.service.acknowledged.get(1, {}))
            else:
                assert found[0].n == self.last_read + 1, "reports of one reading follow one another"
            self.last_read = found[0].n

    def back_up(self) -> None:
        self.service.backup = {attempt: dict(each) for attempt, each in self.service.stored.items()}

    def restore(self) -> None:
        """Restore the database of the service from its backup."""
        self.service.stored = {attempt: dict(each) for attempt, each in self.service.backup.items()}

    def restart(self) -> None:
        """Restart all processes."""
        self.inbox = SpoolReader(self.home)
        self.writer = Spool(self.folder, self.attempt)

    def begin(self) -> None:
        """Start the next attempt."""
        self.attempt += 1
        self.returned[self.attempt] = []
        self.writer = Spool(self.folder, self.attempt)

    def check_order(self) -> None:
        """Check that the remaining segments have no gap after a kill during their removal."""
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
def small_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SEGMENT_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(spool, "MAX_RETAINED_BYTES", KEPT_BYTES)
    monkeypatch.setattr(spool_reader, "MAX_RETAINED_BYTES", KEPT_BYTES)


def inject_faults(faults: FaultInjector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill processes at random writes and removals of files."""
    open_, remove = Path.open, os.unlink
    faulty_file = type("FaultyFile", (FaultyFile,), {"faults": faults})

    def faulty_open(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode != "ab":
            return open_(path, mode, *args, **kwargs)
        faults.maybe_kill()
        file = faulty_file(path, "ab")
        try:
            faults.maybe_kill()
        except Killed:
            file.close()
            raise
        return file

    def unlink(path: Any, *args: Any, **kwargs: Any) -> None:
        faults.maybe_kill(0.1)
        remove(path, *args, **kwargs)
        faults.maybe_kill(0.1)

    monkeypatch.setattr(Path, "open", faulty_open)
    monkeypatch.setattr(os, "unlink", unlink)


@pytest.mark.usefixtures("small_spool")
def test_kills_lose_and_repeat_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = gaps = 0
    for seed in range(FAULT_SEEDS):
        with monkeypatch.context() as patched:
            job = Job(tmp_path / str(seed), seed)
            inject_faults(job.faults, patched)
            for _ in range(MOVES):
                job.move()
        _check(job)
        kills, gaps = kills + job.faults.kills, gaps + job.service.gaps

    assert kills > 10 * FAULT_SEEDS
    assert gaps, "some services were restored from so old a backup that reports are gone"


def _check(job: Job) -> None:
    job.deliver()
    spooled = {a: [r for r, _ in read_spool(spool_file(job.folder, a))] for a in job.returned}
    for attempt, item in job.returned.items():
        answer = job.service.acknowledged.get(attempt, {})
        assert list(answer) == list(range(1, len(answer) + 1)), "the service was given each number"
        assert len(set(answer.values())) == len(answer), "and each report under one number"
        assert [each for each in answer.values() if each in set(item)] == item
        kept = {report.n: report.body["id"] for report in spooled[attempt]}
        assert kept.items() <= answer.items()
    trim(job.folder, job.service.marks())
    sizes = job.sizes()
    newest = [some[-1] for some in by_attempt(each.name for each in sizes).values()]
    assert not list(removable(sizes, job.service.marks(), KEPT_BYTES))
    if Segment(1, 1) not in sizes:
        assert sum(sizes.values()) >= KEPT_BYTES
    assert sum(sizes.values()) <= KEPT_BYTES + SEGMENT_BYTES * (len(newest) + 1)
    assert spooled_attempts(job.folder) == sorted(each.attempt for each in newest)
