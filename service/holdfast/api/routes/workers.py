"""What workers ask and tell: who they are, and what happened; with a token that is good for one job."""

from __future__ import annotations

from holdfast_worker.protocol.reports import Report, ReportKind

from holdfast.api.dependencies import The
from holdfast.api.routing import Router
from holdfast.api.schemas.workers import RegistrationIn, RegistrationOut, ReportsIn, ReportsOut
from holdfast.domain.access.permissions import WORKER_GRACE
from holdfast.domain.jobs.guards import grace_ms
from holdfast.errors import HoldfastError, NotLookedYet
from holdfast.services import Services
from holdfast.store.report_ingest import Accepted, Batch

router = Router(prefix="/v1/jobs/{job_id}", tags=["workers"])


@router.post("/muster", response_model=RegistrationOut)
def muster(job_id: str, body: RegistrationIn, services: The) -> RegistrationOut:
    """Tell a worker which attempt it is, where its launcher does not. The newest to ask speaks for the job."""
    try:
        place = services.musters.register(job_id, body.incarnation)
    except NotLookedYet:
        services.nudge()
        raise
    return RegistrationOut(attempt=place.attempt, next=place.next, before=place.before)


@router.post("/reports", response_model=ReportsOut)
def take_reports(job_id: str, body: ReportsIn, services: The) -> ReportsOut:
    """Take what is new of these reports; the answer says where the worker is to go on, and how long it may stay."""
    [verdict] = services.journal.ingest_reports([batch_of(job_id, body)])
    if isinstance(verdict, HoldfastError):
        raise verdict
    told, is_goodbye = answer(services, body, verdict)
    if is_goodbye:
        release_nodes(services, job_id)
    return told


def batch_of(job_id: str, body: ReportsIn) -> Batch:
    """What a worker of a job sent, as the journal takes it."""
    return Batch(
        job_id=job_id,
        attempt=body.attempt,
        reports=[Report(body.attempt, r.n, r.at, r.kind, r.body) for r in body.reports],
        incarnation=body.incarnation,
        grace=WORKER_GRACE,
        oldest=body.oldest,
    )


def answer(services: Services, body: ReportsIn, taken: Accepted) -> tuple[ReportsOut, bool]:
    """What a worker is told, and whether it has said goodbye, as its nodes were left to it for this alone."""
    left_ms = None if taken.job is None else grace_ms(taken.job, services.clock.now())
    if left_ms is None:
        return ReportsOut(next=taken.next, leave_within_s=None), False
    is_goodbye = any(item.kind == ReportKind.WORKER_LEFT for item in body.reports)
    return ReportsOut(next=taken.next, leave_within_s=left_ms / 1000), is_goodbye


def release_nodes(services: Services, job_id: str) -> None:
    """Let the nodes of a job go now."""
    services.watches.nudge(job_id, services.clock.now())
    services.nudge()
