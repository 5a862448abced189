"""Reports of workers: taken once, in order, with a token that is good for one job."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from holdfast_worker.wire import Report, ReportKind

from holdfast.api.auth import worker
from holdfast.api.schemas import ReportIn, ReportsIn, ReportsOut
from holdfast.api.services import The
from holdfast.errors import BadReport

router = APIRouter(prefix="/v1/jobs/{job_id}", dependencies=[Depends(worker)], tags=["workers"])


@router.post("/reports", response_model=ReportsOut)
def take_reports(job_id: str, body: ReportsIn, services: The) -> ReportsOut:
    """Take what is new of these reports; the answer says where the worker is to go on."""
    reports = [_report(body.attempt, item) for item in body.reports]
    return ReportsOut(next=services.journal.absorb(job_id, body.attempt, reports))


def _report(attempt: int, item: ReportIn) -> Report:
    try:
        kind = ReportKind(item.kind)
    except ValueError as error:
        raise BadReport(f"report {item.n}: {item.kind!r} is not a kind of report") from error
    return Report(attempt, item.n, item.at, kind, item.body)
