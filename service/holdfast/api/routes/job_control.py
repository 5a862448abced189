"""What people ask of a job that is there: pause, resume, other limits.

Removal of ended jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query, Response

from holdfast.api.auth.authentication import TheCaller, TheDoer
from holdfast.api.dependencies import The, TheJob
from holdfast.api.etags import IfMatch, check, etag
from holdfast.api.routing import Router
from holdfast.api.schemas.jobs import JobOut, LimitsIn, PauseIn, RemovalOut, ResumeIn
from holdfast.api.views.jobs import NOT_ONES_OWN, job_views
from holdfast.domain.access.audit import AuditAction
from holdfast.domain.events import Event, LimitsChanged
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.job import Job
from holdfast.errors import Forbidden
from holdfast.rendering import render
from holdfast.services import Services
from holdfast.submission.commands import append_with_retry

control_router = Router(prefix="/v1/jobs/{job_id}", tags=["jobs"])


@control_router.post("/pause", status_code=202, response_model=JobOut)
def pause_job(
    job: TheJob, services: The, caller: TheCaller, doer: TheDoer, body: PauseIn | None = None
) -> JobOut:
    """Ask that a job give its nodes back and wait: `pausing` when this returns, `paused` once they are gone."""
    reason = (body or PauseIn()).reason
    job = append_with_retry(
        services,
        job,
        lambda job: commands.pause(job, services.clock.now(), reason, caller.name),
        lambda job: doer.did("job.pause", job.id, {"state": job.status}, {"reason": reason}),
    )
    return job_views(services, [job])[0]


@control_router.post("/resume", status_code=202, response_model=JobOut)
def resume_job(
    job: TheJob, services: The, caller: TheCaller, doer: TheDoer, body: ResumeIn | None = None
) -> JobOut:
    """Ask that a paused job go on from its newest checkpoint, under other limits if some are named."""
    asked = body or ResumeIn()
    spec = _spec(services, job)

    def wish(job: Job) -> Sequence[Event]:
        limits, changes = _limits(job, spec), _named(asked.limits)
        facts = commands.resume(
            *(job, limits, changes, services.clock.now()), reason=asked.reason, by=caller.name
        )
        _try_to_render(spec, facts)
        return facts

    told = {
        "reason": asked.reason,
        "limits": asked.limits.model_dump(mode="json", exclude_unset=True),
    }
    job = append_with_retry(
        services,
        job,
        wish,
        lambda job: doer.did("job.resume", job.id, {"state": job.status}, told),
    )
    return job_views(services, [job])[0]


@control_router.patch("/limits", response_model=JobOut)
def change_limits(
    job: TheJob,
    services: The,
    caller: TheCaller,
    doer: TheDoer,
    body: LimitsIn,
    *,
    response: Response,
    if_match: IfMatch = None,
) -> JobOut:
    """Give a job other limits; those that are not named stay. They hold at once, but for `max_stall`."""
    spec = _spec(services, job)

    def wish(job: Job) -> Sequence[Event]:
        check(if_match, job)
        limits, changes = _limits(job, spec), _named(body)
        facts = commands.change_limits(job, limits, changes, services.clock.now(), caller.name)
        _try_to_render(spec, facts)
        return facts

    told = body.model_dump(mode="json", exclude_unset=True)

    def deed(job: Job) -> AuditAction:
        before = _limits(job, spec).model_dump(mode="json", include=set(told))
        return doer.did("job.limits", job.id, before, told)

    job = append_with_retry(services, job, wish, deed)
    response.headers["ETag"] = etag(job)
    return job_views(services, [job])[0]


def _spec(services: Services, job: Job) -> JobSpec:
    return JobSpec.stored(services.journal.submission(job.id).spec)


def _limits(job: Job, spec: JobSpec) -> Limits:
    return job.limits or spec.holdfast.limits


def _named(body: LimitsIn) -> dict[str, Any]:
    return body.model_dump(exclude_unset=True)


def _try_to_render(spec: JobSpec, facts: Sequence[Event]) -> None:
    """Let what nobody could launch be an answer now, and not a failure at the next launch.

    Raises:
        BadJobFile: the launcher cannot keep to these limits.
    """
    for fact in facts:
        if isinstance(fact, LimitsChanged):
            render(spec.with_limits(Limits.model_validate(fact.limits, extra="ignore")))


removals_router = Router(prefix="/v1/jobs", tags=["jobs"])


@removals_router.delete("/{job_id}", status_code=202, response_model=RemovalOut)
def remove_job(
    job_id: str,
    services: The,
    caller: TheCaller,
    doer: TheDoer,
    *,
    checkpoints: Annotated[
        bool, Query(description="Remove its checkpoints from the store as well.")
    ] = False,
) -> RemovalOut:
    """Remove an ended job; its costs stay in all sums. The answer to a repeated request says whether its files are gone."""

    def deed(job: Job) -> AuditAction:
        if not caller.may_remove(job.project, job.owner):
            raise Forbidden(f"job {job_id} cannot be removed: {NOT_ONES_OWN}")
        before = {"name": job.name, "state": job.status, "project": job.project, "owner": job.owner}
        return doer.did("job.remove", job_id, before, {"removes_checkpoints": checkpoints})

    removal = services.removals.remove(job_id, deed, services.ledgers, with_checkpoints=checkpoints)
    return RemovalOut(
        job_id=removal.job_id,
        removed_at=removal.removed_at,
        checkpoints=removal.place,
        removes_checkpoints=removal.with_checkpoints,
        done_at=removal.done_at,
        trouble=removal.trouble,
    )
