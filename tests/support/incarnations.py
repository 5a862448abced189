"""One job with workers that register incarnations and may leave reports unread."""

from __future__ import annotations

from holdfast.domain.events import Event
from holdfast.errors import NotObservedYet
from holdfast.store.incarnations import Incarnations, JobPosition
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from sqlalchemy import Engine
from support.events import at
from support.fakes import FixedClock


def place(attempt: int, number: int) -> JobPosition:
    """The position of a worker that has not reported yet."""
    return JobPosition(attempt, next=number, before=number - 1)


class IncarnationHarness:
    """One job and its registering workers."""

    def __init__(self, engine: Engine, journal: Journal, clock: FixedClock) -> None:
        self.musters = Incarnations(engine, clock)
        self.watches = LeaseTable(engine)
        self.journal, self.clock = journal, clock

    def calls(self, incarnation: str) -> JobPosition | None:
        """Register a worker and return its position; None: the worker has to retry."""
        self.clock.advance(1)
        try:
            return self.musters.register("job-1", incarnation)
        except NotObservedYet:
            return None

    def look(self, *news: Event) -> None:
        """Record an observation that begins now, with these events."""
        self.clock.advance(1)
        began = self.clock.now()
        self.watches.make_due("job-1", began)
        self.journal.append(self.journal.read("job-1"), news)
        self.watches.release(
            "job-1", leased_until=began, due_at=at(9999), seen_at=began, trouble=None
        )

    def says(self, incarnation: str, attempt: int, *reports: Report) -> int:
        return self.journal.ingest("job-1", attempt, reports, incarnation).next

    def posts(self, incarnation: str, seconds: float) -> tuple[int, int] | None:
        """The attempt of posted reports whose worker first registered at a given time."""
        return self.musters.register_posted("job-1", incarnation, at(seconds), None)


def report(attempt: int, n: int, kind: ReportKind, **body: Json) -> Report:
    return Report(attempt, n, at(n).isoformat(), kind, body)


def trains(attempt: int, n: int = 1) -> Report:
    return report(attempt, n, ReportKind.TRAINING_STARTED, step=0)


def leaves(attempt: int, n: int = 2) -> Report:
    body: dict[str, Json] = {"step": 5, "reason": "preempted", "exit_code": 75}
    return report(attempt, n, ReportKind.WORKER_LEFT, **body)


def saves(attempt: int, n: int = 2) -> Report:
    words: dict[str, Json] = {"checkpoint": "c", "weights_sha256": "00"}
    counts: dict[str, Json] = {"step": 4, "size_bytes": 1, "stall_ms": 0, "upload_ms": 0}
    when: dict[str, Json] = {"snapshot_at": at(1).isoformat()}
    return report(attempt, n, ReportKind.CHECKPOINT_COMMITTED, **words, **counts, **when)
