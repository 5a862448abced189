"""A job whose workers post reports to its store, and the importer that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.background.report_import import ReportImporter
from holdfast.domain.events import Event
from holdfast.store.incarnations import Incarnations
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from holdfast_worker.protocol.report_archive import ReportArchive
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from sqlalchemy import Engine
from support.events import submitted
from support.fakes import FixedClock
from support.memory_store import MemoryBucket, MemoryObjects, StoreFaults

JOB = "job-1"
EVERY_S = 30


@dataclass
class ReportImportHarness:
    """One job whose workers post reports, its store, and the importer, on a common clock."""

    engine: Engine
    clock: FixedClock
    checkpoint: str | None = "s3://bucket/runs"
    weather: StoreFaults = field(default_factory=StoreFaults)

    def __post_init__(self) -> None:
        self.bucket_objects = MemoryObjects(self.clock)
        self.journal = Journal(self.engine, self.clock)
        self.watches = LeaseTable(self.engine)
        self.collector = self.new_collector()
        block = {"checkpoint": {"store": self.checkpoint}} if self.checkpoint else {}
        self.journal.submit(JOB, submitted(**block))
        self.looks: list[str] = []

    def new_collector(self) -> ReportImporter:
        """Create another importer, as after a restart of the service."""
        depot = MemoryBucket(self.bucket_objects, self._before)
        return ReportImporter(
            journal=self.journal,
            incarnations=Incarnations(self.engine, self.clock),
            leases=self.watches,
            open_bucket=lambda store, job_id, envs: depot,
            clock=self.clock,
            every_s=EVERY_S,
        )

    def _before(self, operation: str, key: str) -> None:
        if operation == "look":
            self.looks.append(key)
        self.weather(operation, key)

    def look(self, *facts: Event) -> None:
        """Record an observation of the launcher at this time, with these events."""
        now = self.clock.now()
        self.journal.append(self.journal.read(JOB), facts)
        self.watches.make_due(JOB, now)
        self.watches.release(JOB, leased_until=now, due_at=now, seen_at=now, trouble=None)

    def seconds(self) -> float:
        return (self.clock.now() - self.journal.read(JOB).submitted_at).total_seconds()

    def post(
        self,
        sender: str,
        *reports: Report,
        place: tuple[int, int] | None = None,
    ) -> str:
        parcel = ReportArchive.from_reports(sender, place, reports)
        self.bucket_objects.put(parcel.key.path, parcel.dump())
        return parcel.key.path

    def visit(self, seconds: float = EVERY_S) -> int:
        self.clock.advance(seconds)
        return self.collector.run_once()

    def kinds(self) -> list[str]:
        """Kinds of the workers' reports, in the order of their import."""
        recorded = self.journal.events(JOB)
        return [item.kind for item in recorded if item.event.source == "worker"]

    def steps(self) -> list[tuple[int, int]]:
        points = Queries(self.engine).points(JOB, limit=1000)
        return [(point.attempt, point.step) for point in points]


def report(n: int, kind: ReportKind, at: datetime, **body: Json) -> Report:
    return Report(0, n, at.isoformat(), kind, body)


def words(clock: FixedClock, first: int, count: int) -> Sequence[Report]:
    """Reports of a worker that starts and trains, numbered from `first`."""
    now = clock.now()
    begin = report(1, ReportKind.TRAINING_STARTED, now, step=0)
    points = [
        report(n, ReportKind.PROGRESS, now, step=n, values={})
        for n in range(max(2, first), first + count)
    ]
    return [begin, *points] if first == 1 else points


def leaving(clock: FixedClock, n: int) -> Report:
    body: dict[str, Json] = {"step": n, "reason": "finished", "exit_code": 0, "detail": ""}
    return report(n, ReportKind.WORKER_LEFT, clock.now(), **body)
