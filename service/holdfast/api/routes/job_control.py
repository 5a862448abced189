"""Control of existing jobs: pause, resume, change limits, remove, and act on several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Header, Query, Response

from holdfast.api.auth.authentication import TheActor, TheCaller
from holdfast.api.dependencies import IfMatch, TheJob, TheServices, check, etag
from holdfast.api.job_filters import selected
from holdfast.api.routing import Router
from holdfast.api.schemas.jobs import JobOut, LimitsIn, PauseIn, RemovalOut
from holdfast.api.schemas.queue import PriorityIn
from holdfast.api.schemas.resize import ResumeIn, ResumePreviewOut
from holdfast.api.schemas.selections import JobActionIn, JobActionOut, JobActionsOut, SelectionIn
from holdfast.api.views.jobs import NOT_OWNER, job_views
from holdfast.api.views.resize import resize_request, resume_preview
from holdfast.domain.access.audit import AuditAction
from holdfast.domain.access.permissions import Caller
from holdfast.domain.events import Event, LimitsChanged
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.bulk_actions import BulkAction, BulkRequest, JobResult
from holdfast.domain.jobs.job import Job
from holdfast.errors import BadRequest, Forbidden
from holdfast.rendering import render
from holdfast.services import Services
from holdfast.submission.admission import REFUSED
from holdfast.submission.bulk_actions import BulkActions
from holdfast.submission.preview import refusal_texts
from holdfast.submission.resize import Resize, prepare_resize
from holdfast.submission.resume_forecast import forecast_resume

control_router = Router(prefix="/v1/jobs/{job_id}", tags=["jobs"])


@control_router.post("/pause", status_code=202, response_model=JobOut)
def pause_job(
    job: TheJob,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    body: PauseIn | None = None,
) -> JobOut:
    """Pause a job: `pausing` in this response, `paused` once its nodes are released."""
    reason = (body or PauseIn()).reason
    job = services.append_with_retry(
        job,
        lambda job: commands.pause(job, services.clock.now(), reason, caller.name),
        lambda job: actor.audit_action(
            "job.pause", job.id, {"state": job.status}, {"reason": reason}
        ),
    )
    return job_views(services, [job])[0]


@control_router.post("/resume", status_code=202, response_model=JobOut)
def resume_job(
    job: TheJob,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    body: ResumeIn | None = None,
) -> JobOut:
    """Resume a paused job from its newest checkpoint, with changed limits and nodes if given."""
    asked = body or ResumeIn()
    spec = _spec(services, job)
    request = resize_request(asked, _limits(job, spec))
    resize = prepare_resize(services, job, request, caller) if request.changes else None
    resized = resize.accepted() if resize else None
    after: dict[str, Any] = {
        "reason": asked.reason,
        "limits": asked.limits.model_dump(mode="json", exclude_unset=True),
    }
    if resized:
        after["resources"] = list(resized.changes)

    def decide(job: Job) -> Sequence[Event]:
        return _resume(services, job, asked, resize, caller)

    job = services.append_with_retry(
        job,
        decide,
        lambda job: actor.audit_action("job.resume", job.id, {"state": job.status}, after),
    )
    return job_views(services, [job])[0]


@control_router.post("/resume/preview", response_model=ResumePreviewOut)
def preview_resume(
    job: TheJob, services: TheServices, caller: TheCaller, body: ResumeIn
) -> ResumePreviewOut:
    """Show what a resume would change: nodes, price, ranks, batch, and where training continues.

    A forecast says when the job would end on the new nodes, and at which cost.
    """
    request = resize_request(body, _limits(job, _spec(services, job)))
    resize = prepare_resize(services, job, request, caller)
    refused = [text for error in resize.refusals for text in refusal_texts(error)]
    if not refused:
        try:
            _resume(services, job, body, resize, caller)
        except REFUSED as error:
            refused = refusal_texts(error)
    limited = resize.after.with_limits(request.limits)
    forecast = forecast_resume(services, job, limited, is_resized=bool(resize.changes))
    return resume_preview(job, resize, refused, forecast)


def _resume(
    services: Services, job: Job, asked: ResumeIn, resize: Resize | None, caller: Caller
) -> Sequence[Event]:
    """Decide a resume with the limits and nodes of a request.

    Raises:
        HoldfastError: it is not possible.
    """
    spec = resize.before if resize else _spec(services, job)
    limits, changes, now = _limits(job, spec), _named(asked.limits), services.clock.now()
    resized = resize.accepted() if resize else None
    facts = commands.resume(
        *(job, limits, changes, now), reason=asked.reason, by=caller.name, resized=resized
    )
    _try_to_render(resize.after if resize else spec, facts)
    return facts


@control_router.patch("/limits", response_model=JobOut)
def change_limits(
    job: TheJob,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    body: LimitsIn,
    *,
    response: Response,
    if_match: IfMatch = None,
) -> JobOut:
    """Change limits of a job; the others stay.

    They take effect at once, `max_stall` with the next launch.
    """
    spec = _spec(services, job)

    def decide(job: Job) -> Sequence[Event]:
        check(if_match, job)
        limits, changes = _limits(job, spec), _named(body)
        facts = commands.change_limits(job, limits, changes, services.clock.now(), caller.name)
        _try_to_render(spec, facts)
        return facts

    after = body.model_dump(mode="json", exclude_unset=True)

    def entry(job: Job) -> AuditAction:
        before = _limits(job, spec).model_dump(mode="json", include=set(after))
        return actor.audit_action("job.limits", job.id, before, after)

    job = services.append_with_retry(job, decide, entry)
    response.headers["ETag"] = etag(job)
    return job_views(services, [job])[0]


@control_router.patch("/priority", response_model=JobOut)
def change_priority(  # noqa: PLR0917 - dependencies of the route
    job: TheJob,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    body: PriorityIn,
    if_match: IfMatch = None,
) -> JobOut:
    """Change the priority of a job in the queue. A job that runs keeps its nodes."""

    def decide(job: Job) -> Sequence[Event]:
        check(if_match, job)
        return commands.change_priority(job, body.priority, services.clock.now(), caller.name)

    def entry(job: Job) -> AuditAction:
        before = {"priority": job.priority}
        return actor.audit_action("job.priority", job.id, before, body.model_dump())

    job = services.append_with_retry(job, decide, entry)
    return job_views(services, [job])[0]


def _spec(services: Services, job: Job) -> JobSpec:
    return JobSpec.from_stored(services.journal.submission(job.id).spec)


def _limits(job: Job, spec: JobSpec) -> Limits:
    return job.limits or spec.holdfast.limits


def _named(body: LimitsIn) -> dict[str, Any]:
    return body.model_dump(exclude_unset=True)


def _try_to_render(spec: JobSpec, facts: Sequence[Event]) -> None:
    """Check that the job can still be rendered, instead of failing at the next launch.

    Raises:
        BadJobFile: the launcher cannot apply these limits.
    """
    for fact in facts:
        if isinstance(fact, LimitsChanged):
            render(spec.with_limits(Limits.model_validate(fact.limits, extra="ignore")))


removals_router = Router(prefix="/v1/jobs", tags=["jobs"])


@removals_router.delete("/{job_id}", status_code=202, response_model=RemovalOut)
def remove_job(
    job_id: str,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    *,
    checkpoints: Annotated[
        bool, Query(description="Also delete its checkpoints from the store.")
    ] = False,
) -> RemovalOut:
    """Remove an ended job; all totals keep its costs.

    A repeated request returns whether its files are deleted.
    """

    def entry(job: Job) -> AuditAction:
        if not caller.may_remove(job.project, job.owner):
            raise Forbidden(f"job {job_id} cannot be removed: {NOT_OWNER}")
        before = {"name": job.name, "state": job.status, "project": job.project, "owner": job.owner}
        return actor.audit_action(
            "job.remove", job_id, before, {"removes_checkpoints": checkpoints}
        )

    removal = services.removals.remove(
        job_id, entry, services.bill_rollups, with_checkpoints=checkpoints
    )
    return RemovalOut(
        job_id=removal.job_id,
        removed_at=removal.removed_at,
        checkpoints=removal.place,
        removes_checkpoints=removal.with_checkpoints,
        done_at=removal.done_at,
        trouble=removal.trouble,
    )


actions_router = Router(prefix="/v1/jobs", tags=["jobs"])


@actions_router.post("/actions", response_model=JobActionsOut)
def act_on_jobs(
    body: JobActionIn,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    *,
    idempotency_key: Annotated[
        str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)
    ] = None,
) -> JobActionsOut:
    """Cancel, pause, resume, retry or label several jobs, with one result for each.

    With `dry_run`, nothing is done; the action itself takes the ids of the preview, so that it never reaches other jobs.
    """
    if (body.action == "label") != bool(body.tags):
        raise BadRequest("tags: give the changes of tags for the action label, and only for it")
    asked = BulkRequest(
        action=BulkAction(body.action), reason=body.reason, by=caller.name, tags=body.tags
    )
    actions = BulkActions(services, caller, actor, asked, idempotency_key)
    if body.selection is None and not body.job_ids:
        raise BadRequest("selection: give a selection or job_ids; neither would mean all jobs")
    where = selected(body.selection or SelectionIn(), caller, services.clock.now())
    if body.dry_run:
        results = actions.preview(where, body.job_ids)
    elif body.job_ids is None:
        raise BadRequest(
            "job_ids: send the ids that a request with dry_run has shown, so that no other job is changed"
        )
    else:
        results = actions.carry_out(where, list(dict.fromkeys(body.job_ids)))
    counts = Counter(each.result for each in results)
    return JobActionsOut(
        dry_run=body.dry_run,
        done=counts[JobResult.DONE],
        refused=counts[JobResult.REFUSED],
        unchanged=counts[JobResult.UNCHANGED],
        jobs=[JobActionOut(**asdict(each)) for each in results],
    )
