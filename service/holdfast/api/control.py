"""What people ask of a job that is there: pause, resume, other limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Response

from holdfast.api.auth import TheCaller, TheDoer
from holdfast.api.control_schemas import LimitsIn, PauseIn, ResumeIn
from holdfast.api.routing import Router
from holdfast.api.schemas import JobOut
from holdfast.api.services import Services, The, TheJob
from holdfast.api.versions import IfMatch, check, etag
from holdfast.api.views import job_views
from holdfast.domain import wishes
from holdfast.domain.deeds import Deed
from holdfast.domain.events import Event, LimitsChanged
from holdfast.domain.job import Job
from holdfast.domain.limits import Limits
from holdfast.domain.spec import JobSpec
from holdfast.errors import StaleWrite
from holdfast.rendering import render

router = Router(prefix="/v1/jobs/{job_id}", tags=["jobs"])


@router.post("/pause", status_code=202, response_model=JobOut)
def pause_job(
    job: TheJob, services: The, caller: TheCaller, doer: TheDoer, body: PauseIn | None = None
) -> JobOut:
    """Ask that a job give its nodes back and wait: `pausing` when this returns, `paused` once they are gone."""
    reason = (body or PauseIn()).reason
    job = carry_out(
        services,
        job,
        lambda job: wishes.pause(job, services.clock.now(), reason, caller.name),
        lambda job: doer.did("job.pause", job.id, {"state": job.status}, {"reason": reason}),
    )
    return job_views(services, [job])[0]


@router.post("/resume", status_code=202, response_model=JobOut)
def resume_job(
    job: TheJob, services: The, caller: TheCaller, doer: TheDoer, body: ResumeIn | None = None
) -> JobOut:
    """Ask that a paused job go on from its newest checkpoint, under other limits if some are named."""
    asked = body or ResumeIn()
    spec = _spec(services, job)

    def wish(job: Job) -> Sequence[Event]:
        limits, changes = _limits(job, spec), _named(asked.limits)
        facts = wishes.resume(
            *(job, limits, changes, services.clock.now()), reason=asked.reason, by=caller.name
        )
        _try_to_render(spec, facts)
        return facts

    told = {
        "reason": asked.reason,
        "limits": asked.limits.model_dump(mode="json", exclude_unset=True),
    }
    job = carry_out(
        services,
        job,
        wish,
        lambda job: doer.did("job.resume", job.id, {"state": job.status}, told),
    )
    return job_views(services, [job])[0]


@router.patch("/limits", response_model=JobOut)
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
        facts = wishes.relimit(job, limits, changes, services.clock.now(), caller.name)
        _try_to_render(spec, facts)
        return facts

    told = body.model_dump(mode="json", exclude_unset=True)

    def deed(job: Job) -> Deed:
        before = _limits(job, spec).model_dump(mode="json", include=set(told))
        return doer.did("job.limits", job.id, before, told)

    job = carry_out(services, job, wish, deed)
    response.headers["ETag"] = etag(job)
    return job_views(services, [job])[0]


def carry_out(
    services: Services,
    job: Job,
    wish: Callable[[Job], Sequence[Event]],
    deed: Callable[[Job], Deed],
) -> Job:
    """The job with the facts that follow from a wish, whoever else writes to it meanwhile; and somebody looks at it soon.

    `deed` is how the audit log tells it.
    """
    while facts := wish(job):
        try:
            job = services.journal.append(job, facts, deed(job))
        except StaleWrite:
            job = services.journal.read(job.id)
        else:
            break
    services.watches.nudge(job.id, services.clock.now())
    services.nudge()
    return job


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
            render(spec.under(Limits.model_validate(fact.limits, extra="ignore")))
