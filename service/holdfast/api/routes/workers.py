"""Routes of workers: registration, rendezvous, reports; with a token for one job."""

from __future__ import annotations

from holdfast_worker.protocol.reports import Report, ReportKind

from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.workers import (
    GroupDrillOut,
    LeaderOut,
    RegistrationIn,
    RegistrationOut,
    RendezvousIn,
    RendezvousOut,
    ReportsIn,
    ReportsOut,
)
from holdfast.api.views.throughput import remaining_view
from holdfast.domain.access.permissions import WORKER_GRACE
from holdfast.domain.jobs.drills import group_drills, ms_until_drill
from holdfast.domain.jobs.guards import grace_ms, stop_of
from holdfast.errors import HoldfastError, NotObservedYet
from holdfast.services import Services
from holdfast.store.rendezvous import ArrivingNode
from holdfast.store.report_ingest import Accepted, ReportBatch

router = Router(prefix="/v1/jobs/{job_id}", tags=["workers"])


@router.post("/muster", response_model=RegistrationOut)
def muster(job_id: str, body: RegistrationIn, services: TheServices) -> RegistrationOut:
    """Register a worker and return its attempt if its launcher does not.

    The newest registration is authoritative.
    """
    try:
        place = services.incarnations.register(job_id, body.incarnation)
    except NotObservedYet:
        services.nudge()
        raise
    return RegistrationOut(attempt=place.attempt, next=place.next, before=place.before)


@router.post("/rendezvous", response_model=RendezvousOut)
def rendezvous(job_id: str, body: RendezvousIn, services: TheServices) -> RendezvousOut:
    """Register node 0 of a job whose nodes are in several groups, or return it to another node."""
    arriving = ArrivingNode(
        node=body.node,
        group=body.group,
        incarnation=body.incarnation,
        joined=body.joined,
        addresses=body.addresses,
        port=body.port,
    )
    found = services.rendezvous.meet(job_id, arriving)
    leader = found.leader and LeaderOut(
        group=found.leader.group,
        incarnation=found.leader.incarnation,
        addresses=[*found.leader.addresses],
        port=found.leader.port,
    )
    return RendezvousOut(leader=leader, start=found.start)


@router.post("/reports", response_model=ReportsOut)
def take_reports(job_id: str, body: ReportsIn, services: TheServices) -> ReportsOut:
    """Ingest new reports.

    The response gives the next expected report and the remaining time of the worker.
    """
    [batch] = services.journal.ingest_reports([batch_of(job_id, body)])
    if isinstance(batch, HoldfastError):
        raise batch
    reply, is_goodbye = reports_reply(services, body, batch)
    if body.asks_end:
        reply.remaining = remaining_view(services, services.journal.read(job_id))
    if is_goodbye:
        release_nodes(services, job_id)
    return reply


def batch_of(job_id: str, body: ReportsIn) -> ReportBatch:
    """Convert the reports of a worker for the journal."""
    return ReportBatch(
        job_id=job_id,
        attempt=body.attempt,
        reports=[Report(body.attempt, r.n, r.at, r.kind, r.body) for r in body.reports],
        incarnation=body.incarnation,
        grace=WORKER_GRACE,
        oldest=body.oldest,
    )


def reports_reply(services: Services, body: ReportsIn, taken: Accepted) -> tuple[ReportsOut, bool]:
    """Build the reply to reports, and return whether the worker has finished.

    Then its nodes wait only for this reply.
    """
    now = services.clock.now()
    left_ms = None if taken.job is None else grace_ms(taken.job, now)
    if left_ms is None:
        drill_ms = None if taken.job is None else ms_until_drill(taken.job, body.attempt, now)
        within_s = None if drill_ms is None else drill_ms / 1000
        drills = [] if taken.job is None else group_drills(taken.job, body.attempt, now)
        asked = [
            GroupDrillOut(
                requested_at=drill.requested_at, nodes=[*drill.nodes], within_s=drill.within_s
            )
            for drill in drills
        ]
        return ReportsOut(next=taken.next, leave_within_s=within_s, drills=asked), False
    is_goodbye = any(item.kind == ReportKind.WORKER_LEFT for item in body.reports)
    stop = taken.job and stop_of(taken.job)
    return ReportsOut(next=taken.next, leave_within_s=left_ms / 1000, stop=stop), is_goodbye


def release_nodes(services: Services, job_id: str) -> None:
    """Release the nodes of a job now."""
    services.leases.make_due(job_id, services.clock.now())
    services.nudge()
