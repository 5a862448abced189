"""What workers ask and tell: who they are, and what happened; with a token that is good for one job."""

from __future__ import annotations

from fastapi import APIRouter
from holdfast_worker.wire import Report, ReportKind

from holdfast.api.schemas import MusterIn, MusterOut, ReportIn, ReportsIn, ReportsOut
from holdfast.api.services import The
from holdfast.domain.guards import grace_ms
from holdfast.errors import BadReport, NotLookedYet

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["workers"])


@router.post("/muster", response_model=MusterOut)
def muster(job_id: str, body: MusterIn, services: The) -> MusterOut:
    """Tell a worker which attempt it is, where its launcher does not. The newest to ask speaks for the job."""
    try:
        place = services.musters.call(job_id, body.incarnation)
    except NotLookedYet:
        services.nudge()
        raise
    return MusterOut(attempt=place.attempt, next=place.next)


@router.post("/reports", response_model=ReportsOut)
def take_reports(job_id: str, body: ReportsIn, services: The) -> ReportsOut:
    """Take what is new of these reports; the answer says where the worker is to go on, and how long it may stay."""
    reports = [_report(body.attempt, item) for item in body.reports]
    taken = services.journal.absorb(job_id, body.attempt, reports, body.incarnation)
    now = services.clock.now()
    left_ms = grace_ms(taken.job, now)
    if left_ms is not None and any(report.kind is ReportKind.WORKER_LEFT for report in reports):
        # Its nodes were left to it for this; now they can go.
        services.watches.nudge(job_id, now)
        services.nudge()
    return ReportsOut(next=taken.next, leave_within_s=None if left_ms is None else left_ms / 1000)


def _report(attempt: int, item: ReportIn) -> Report:
    try:
        kind = ReportKind(item.kind)
    except ValueError as error:
        raise BadReport(f"report {item.n}: {item.kind!r} is not a kind of report") from error
    return Report(attempt, item.n, item.at, kind, item.body)
