"""Jobs: submit, list, show, cancel and preempt, and previews of launches."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Depends, Header, Query, Response

from holdfast.api.auth.authentication import TheActor, TheCaller
from holdfast.api.dependencies import TheJob, TheServices, etag
from holdfast.api.job_filters import TheFilter
from holdfast.api.routing import Router
from holdfast.api.schemas.jobs import (
    CancelIn,
    CloneIn,
    EventOut,
    JobOut,
    JobPage,
    PointOut,
    PreemptIn,
    RenderOut,
    RenderTaskIn,
    TaskIn,
)
from holdfast.api.schemas.workers import MAX_SEQ
from holdfast.api.views.jobs import (
    event_view,
    job_views,
    point_view,
    preemption_refusal,
    submitted_view,
    with_permissions,
)
from holdfast.domain.events import Event
from holdfast.domain.events.values import Checkout
from holdfast.domain.jobfile.parser import Overrides
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.drills import (
    LEADER,
    group_drill_refusal,
    group_of_drill,
    keeps_state,
    lost_work_refusal,
    request_drill,
    worker_drill_refusal,
)
from holdfast.domain.jobs.job import Job
from holdfast.errors import (
    BadRequest,
    NotPossibleNow,
)
from holdfast.ports import Preemptible
from holdfast.rendering import TorchrunRequest
from holdfast.services import Services
from holdfast.submission.copies import JobChanges, JobCopier
from holdfast.submission.preview import PreviewOptions
from holdfast.submission.submit import JobRequest, preview_submission, submit

jobs_router = Router(prefix="/v1")


IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)
]


def job_request(body: TaskIn) -> JobRequest:
    """Return the request of a submission or a preview."""
    overrides = Overrides(
        name=body.name,
        envs=body.env,
        secrets=body.secrets,
        base_dir=body.base_dir,
        home_dir=body.home_dir,
        limits=body.limits.model_dump(exclude_unset=True) if body.limits else {},
        priority=body.priority,
        keep_failed=body.keep_failed,
    )
    return JobRequest(
        text=body.task,
        overrides=overrides,
        project=body.project,
        default_project=body.default_project,
        code=body.code,
        checkout=Checkout(**body.checkout.model_dump()) if body.checkout else None,
        force=body.force,
    )


def _created(services: Services, job: Job, response: Response) -> JobOut:
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return submitted_view(services, job.id)


@jobs_router.post("/jobs", status_code=201, response_model=JobOut, tags=["jobs"])
def submit_job(
    body: TaskIn,
    response: Response,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    *,
    idempotency_key: IdempotencyKey = None,
) -> JobOut:
    """Record a new job, which is launched soon after.

    The same Idempotency-Key and body return the same job.
    """
    # Without defaults, so that a later version with more fields recognizes the same request.
    optional = (
        "project",
        "default_project",
        "checkout",
        "code",
        "limits",
        "priority",
        "keep_failed",
    )
    unset = {name for name in optional if getattr(body, name) is None}
    unset |= set() if body.force else {"force"}
    requested = body.model_dump_json(exclude={"secrets"} | unset)
    job = submit(
        services, job_request(body), caller, actor, key=idempotency_key, requested=requested
    )
    return _created(services, job, response)


@jobs_router.get("/jobs", response_model=JobPage, tags=["jobs"])
def list_jobs(
    services: TheServices,
    caller: TheCaller,
    where: TheFilter,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next` of the previous page.")] = None,
) -> JobPage:
    """List jobs of the caller's projects, newest first."""
    page = services.queries.jobs(limit=limit, after=cursor, where=where)
    return JobPage(
        jobs=with_permissions(job_views(services, page.jobs), caller),
        next=page.next,
        total=page.total,
    )


@jobs_router.get("/jobs/{job_id}", response_model=JobOut, tags=["jobs"])
def show_job(job: TheJob, services: TheServices, caller: TheCaller, response: Response) -> JobOut:
    """Show the current state of a job. Its `ETag` is the number of its newest event."""
    response.headers["ETag"] = etag(job)
    return with_permissions(job_views(services, [job]), caller)[0]


@jobs_router.post("/jobs/{job_id}/cancel", status_code=202, response_model=JobOut, tags=["jobs"])
def cancel_job(
    job: TheJob,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    body: CancelIn | None = None,
) -> JobOut:
    """Cancel a job: `stopping` in this response, `cancelled` once its nodes are released."""
    reason = (body or CancelIn()).reason
    job = services.append_with_retry(
        job,
        lambda job: commands.cancel(job, services.clock.now(), reason, caller.name),
        lambda job: actor.audit_action(
            "job.cancel", job.id, {"state": job.status}, {"reason": reason}
        ),
    )
    return job_views(services, [job])[0]


def _lost_work_refusal(
    services: Services, job: Job, spec: JobSpec, body: PreemptIn, group: str
) -> str | None:
    """Return why a drill would lose work of a job with nodes; None if it would not."""
    launcher = services.launchers[spec.engine]
    if isinstance(launcher, Preemptible) and asyncio.run(
        launcher.replaces_alone(job.launch_key, node=body.node)
    ):
        return None
    facts = [fact.event for fact in services.journal.events(job.id)]
    if group and LEADER not in job.nodes_by_group[group] and keeps_state(facts, job.attempt):
        return None
    return lost_work_refusal(
        facts,
        job_views(services, [job])[0].step,
        notice_s=body.notice_s,
        has_store=spec.holdfast.checkpoint is not None,
    )


def _check_place(job: Job, spec: JobSpec, body: PreemptIn) -> None:
    """Check that a job has the node or the group that a request names."""
    if body.node is not None and body.group is not None:
        raise BadRequest("the request names a node and a group; give one of them")
    if body.node is not None and body.node >= spec.num_nodes:
        raise NotPossibleNow(
            f"job {job.id} has nodes 0 to {spec.num_nodes - 1}; node {body.node} does not exist"
        )
    names = [group.name for group in spec.holdfast.groups]
    if body.group is not None and body.group not in names:
        known = f"the node groups {', '.join(names)}" if names else "no node groups"
        raise NotPossibleNow(f"job {job.id} has {known}; group {body.group} does not exist")


@jobs_router.post("/jobs/{job_id}/preempt", status_code=202, response_model=JobOut, tags=["jobs"])
def preempt_job(
    job: TheJob, services: TheServices, caller: TheCaller, actor: TheActor, body: PreemptIn
) -> JobOut:
    """Preempt a node as a spot market would, with or without notice, to test recovery.

    It is recorded as a drill, and statistics of the spot market exclude it.
    """
    spec = JobSpec.from_stored(services.journal.submission(job.id).spec)
    _check_place(job, spec, body)
    launcher = services.launchers.get(spec.engine)
    through_worker = not isinstance(launcher, Preemptible)

    def request(job: Job) -> tuple[Event, ...]:
        now = services.clock.now()
        reason = preemption_refusal(services, job, spec)
        group = group_of_drill(job, node=body.node, group=body.group) if through_worker else ""
        if reason is None and group:
            reason = group_drill_refusal(job, group, now, notice_s=body.notice_s)
        elif reason is None and through_worker:
            reason = worker_drill_refusal(job, node=body.node, notice_s=body.notice_s)
        if reason is None and not body.force:
            reason = _lost_work_refusal(services, job, spec, body, group)
        if reason:
            raise NotPossibleNow(f"job {job.id} cannot be preempted: {reason}")
        return request_drill(
            job,
            now,
            node=body.node,
            notice_s=body.notice_s or None,
            by=caller.name,
            through_worker=through_worker,
            group=group,
        )

    asked = body.model_dump()
    job = services.append_with_retry(
        job, request, lambda job: actor.audit_action("job.preempt", job.id, after=asked)
    )
    if isinstance(launcher, Preemptible):
        asyncio.run(launcher.preempt(job.launch_key, node=body.node, notice_s=body.notice_s))
    services.leases.make_due(job.id, services.clock.now())
    services.nudge()
    return job_views(services, [services.journal.read(job.id)])[0]


@jobs_router.get("/jobs/{job_id}/events", response_model=list[EventOut], tags=["history"])
def list_events(
    job: TheJob,
    services: TheServices,
    after: Annotated[
        int, Query(ge=0, le=MAX_SEQ, description="Only events with a greater seq.")
    ] = 0,
) -> list[EventOut]:
    """List the events of a job in order."""
    return [event_view(fact) for fact in services.journal.events(job.id, after_seq=after)]


@jobs_router.get("/jobs/{job_id}/metrics", response_model=list[PointOut], tags=["history"])
def list_metrics(
    job: TheJob, services: TheServices, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> list[PointOut]:
    """List the newest points that workers reported, oldest first."""
    return [point_view(point) for point in services.queries.points(job.id, limit=limit)]


clones_router = Router(prefix="/v1/jobs/{job_id}", tags=["jobs"])


def _copier(
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    *,
    body: CloneIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> JobCopier:
    body = body or CloneIn()
    changes = JobChanges(
        name=body.name,
        env=body.env,
        secrets=body.secrets,
        limits=body.limits.model_dump(exclude_unset=True),
        force=body.force,
    )
    requested = body.model_dump_json(exclude={"secrets"}, exclude_unset=True)
    return JobCopier(services, caller, actor, changes, requested, idempotency_key)


TheCopier = Annotated[JobCopier, Depends(_copier)]


@clones_router.post("/clone", status_code=201, response_model=JobOut)
def clone_job(job: TheJob, copier: TheCopier, services: TheServices, response: Response) -> JobOut:
    """Submit a copy of a job with its current limits.

    It starts where this one started, with its own store.
    """
    return _created(services, copier.clone(job), response)


@clones_router.post("/retry", status_code=201, response_model=JobOut)
def retry_job(job: TheJob, copier: TheCopier, services: TheServices, response: Response) -> JobOut:
    """Submit a copy of an ended, unsuccessful job that resumes from its newest checkpoint."""
    return _created(services, copier.retry(job), response)


render_router = Router(prefix="/v1/render", tags=["jobs"])


@render_router.post("", response_model=RenderOut)
def render_task(body: RenderTaskIn, services: TheServices, caller: TheCaller) -> RenderOut:
    """Show what would be launched for a job file, without launching it."""
    by_hand = TorchrunRequest(**body.by_hand.model_dump()) if body.by_hand else None
    options = PreviewOptions(by_hand=by_hand, sbatch=body.sbatch, prices=body.prices)
    shown = preview_submission(services, job_request(body), caller, options)
    return RenderOut.model_validate(shown, from_attributes=True)
