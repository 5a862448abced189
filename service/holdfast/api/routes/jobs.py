"""Jobs: submit, list, look, cancel, preempt.

What would be launched for a job file, and how people would start it themselves.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Final

from fastapi import Depends, Header, Query, Response
from pydantic import StringConstraints

from holdfast.api.auth.authentication import TheCaller, TheDoer
from holdfast.api.dependencies import The, TheJob
from holdfast.api.etags import etag
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
from holdfast.api.time_ranges import TheWindow
from holdfast.api.views.jobs import (
    as_allowed,
    event_view,
    job_views,
    point_view,
    submitted_view,
    why_no_preemption,
)
from holdfast.domain.access.permissions import Caller
from holdfast.domain.events.values import Checkout
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import HistoricalLifetimes, accept
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.commands import why_no_retry
from holdfast.errors import (
    BadRequest,
    HoldfastError,
    NotPossibleNow,
)
from holdfast.ports import Preemptible
from holdfast.services import Services
from holdfast.store.journal import Request
from holdfast.store.queries import TagFilter
from holdfast.submission.admission import (
    REFUSED,
    check_budgets,
    check_parent_job,
    past_for,
    refusals,
)
from holdfast.submission.commands import append_with_retry
from holdfast.submission.copies import JobCopier
from holdfast.submission.preview import preview, understand
from holdfast.submission.submit import code_of, own_key, places_of, project_of, record, submission

jobs_router = Router(prefix="/v1")

Word = Annotated[str, StringConstraints(min_length=1)]
_TAG: Final = re.compile(r"([\w./ -]{1,200})(?:[:=](.*))?", re.DOTALL)


def _tags(
    tag: Annotated[
        list[Word] | None,
        Query(
            max_length=10,
            description="Only jobs with this tag: name:value, name=value, or a name alone; all of several.",
        ),
    ] = None,
) -> list[TagFilter]:
    found = [(text, _TAG.fullmatch(text)) for text in tag or ()]
    if bad := next((text for text, match in found if match is None), None):
        raise BadRequest(
            f"tag: {bad[:100]!r} is no tag; write name:value, with letters, digits, spaces, _ . / - in the name"
        )
    return [TagFilter(match[1], match[2]) for _, match in found if match]


TheTags = Annotated[list[TagFilter], Depends(_tags)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]


@jobs_router.post("/jobs", status_code=201, response_model=JobOut, tags=["jobs"])
def submit_job(
    body: TaskIn,
    response: Response,
    services: The,
    caller: TheCaller,
    doer: TheDoer,
    *,
    idempotency_key: Key = None,
) -> JobOut:
    """Record a new job. It is launched soon after; the same Idempotency-Key and body give the same job."""
    understood, rendered = understand(body, code_of(services, body, caller))
    project = project_of(caller, body, understood.spec)
    # Without what is not said, so that a request is the same one to a version that has more to say.
    optional = ("project", "default_project", "checkout", "code")
    unsaid = {name for name in optional if getattr(body, name) is None}
    unsaid |= set() if body.force else {"force"}
    said = body.model_dump_json(exclude={"secrets"} | unsaid)
    digest = services.secrets.digest(said.encode(), understood.secrets)
    request = Request(own_key(idempotency_key, caller), digest) if idempotency_key else None
    # First: what was recorded once is not judged again by another hour, or by a service with other launchers.
    job = services.journal.made_by(request) if request else None
    if job is None:
        event = submission(
            services, understood, rendered, caller=caller, project=project, force=body.force
        )
        if body.checkout:
            event = replace(event, checkout=Checkout(**body.checkout.model_dump()))
        job = record(services, understood, event, request, doer)
    services.nudge()
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return submitted_view(services, job.id)


@jobs_router.get("/jobs", response_model=JobPage, tags=["jobs"])
def list_jobs(
    services: The,
    caller: TheCaller,
    *,
    status: Annotated[list[Word] | None, Query(description="Only jobs in these states.")] = None,
    project: Annotated[Word | None, Query(description="Only jobs of this project.")] = None,
    owner: Annotated[Word | None, Query(description="Only jobs of this user.")] = None,
    find: Annotated[
        Word | None,
        Query(max_length=200, description="Only jobs with this in their name or id, in any case."),
    ] = None,
    tags: TheTags,
    window: TheWindow,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next` of the page before.")] = None,
) -> JobPage:
    """Jobs of the projects that the caller is in, newest first."""
    seen = caller.within(project)
    page = services.reading.jobs(
        limit=limit,
        statuses=status or (),
        after=cursor,
        projects=seen,
        owner=owner,
        find=find,
        tags=tags,
        since=window.begins_at,
        until=window.ends_at,
    )
    return JobPage(
        jobs=as_allowed(job_views(services, page.jobs), caller), next=page.next, total=page.total
    )


@jobs_router.get("/jobs/{job_id}", response_model=JobOut, tags=["jobs"])
def show_job(job: TheJob, services: The, caller: TheCaller, response: Response) -> JobOut:
    """One job as it is now. Its `ETag` is the number of its last fact."""
    response.headers["ETag"] = etag(job)
    return as_allowed(job_views(services, [job]), caller)[0]


@jobs_router.post("/jobs/{job_id}/cancel", status_code=202, response_model=JobOut, tags=["jobs"])
def cancel_job(
    job: TheJob, services: The, caller: TheCaller, doer: TheDoer, body: CancelIn | None = None
) -> JobOut:
    """Ask for an end. The job is `stopping` when this returns, `cancelled` once its nodes are gone."""
    reason = (body or CancelIn()).reason
    job = append_with_retry(
        services,
        job,
        lambda job: commands.cancel(job, services.clock.now(), reason, caller.name),
        lambda job: doer.did("job.cancel", job.id, {"state": job.status}, {"reason": reason}),
    )
    return job_views(services, [job])[0]


@jobs_router.post("/jobs/{job_id}/preempt", status_code=202, response_model=JobOut, tags=["jobs"])
def preempt_job(job: TheJob, services: The, doer: TheDoer, body: PreemptIn) -> JobOut:
    """Take a node as a spot market would, with notice or without, to see the job come back."""
    spec = JobSpec.stored(services.journal.submission(job.id).spec)
    if reason := why_no_preemption(services, job, spec):
        raise NotPossibleNow(f"job {job.id} cannot be preempted: {reason}")
    if body.node is not None and body.node >= spec.num_nodes:
        raise NotPossibleNow(
            f"job {job.id} has nodes 0 to {spec.num_nodes - 1}; there is no node {body.node}"
        )
    launcher = services.launchers[spec.engine]
    assert isinstance(launcher, Preemptible)
    asked = body.model_dump()
    services.audit.note(doer.did("job.preempt", job.id, after=asked))
    asyncio.run(launcher.preempt(job.launch_key, node=body.node, notice_s=body.notice_s))
    services.watches.nudge(job.id, services.clock.now())
    services.nudge()
    return job_views(services, [services.journal.read(job.id)])[0]


@jobs_router.get("/jobs/{job_id}/events", response_model=list[EventOut], tags=["history"])
def list_events(
    job: TheJob,
    services: The,
    after: Annotated[
        int, Query(ge=0, le=MAX_SEQ, description="Only events with a greater seq.")
    ] = 0,
) -> list[EventOut]:
    """The facts of a job in order."""
    return [event_view(fact) for fact in services.journal.events(job.id, after_seq=after)]


@jobs_router.get("/jobs/{job_id}/metrics", response_model=list[PointOut], tags=["history"])
def list_metrics(
    job: TheJob, services: The, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> list[PointOut]:
    """The newest points that workers reported, oldest first."""
    return [point_view(point) for point in services.reading.points(job.id, limit=limit)]


clones_router = Router(prefix="/v1/jobs/{job_id}", tags=["jobs"])


def _copier(
    services: The,
    response: Response,
    caller: TheCaller,
    doer: TheDoer,
    *,
    body: CloneIn | None = None,
    idempotency_key: Key = None,
) -> JobCopier:
    return JobCopier(services, response, caller, doer, body or CloneIn(), idempotency_key)


TheCopier = Annotated[JobCopier, Depends(_copier)]


@clones_router.post("/clone", status_code=201, response_model=JobOut)
def clone_job(job: TheJob, copier: TheCopier) -> JobOut:
    """Record a new job like this one, with its limits as they are now. It begins where this one began, in a store of its own."""

    def understand() -> JobSpec:
        return JobSpec.stored(copier.services.journal.submission(job.id).spec)

    return copier.copy("clone", job, understand)


@clones_router.post("/retry", status_code=201, response_model=JobOut)
def retry_job(job: TheJob, copier: TheCopier) -> JobOut:
    """Record a new job like this one, which has ended without success, to go on from its newest checkpoint."""

    def understand() -> JobSpec:
        services = copier.services
        digest, _ = services.digests.of([job], services.clock.now())[job.id]
        if no := why_no_retry(job, digest.newest):
            raise NotPossibleNow(f"job {job.id} cannot be retried: {no}")
        return digest.spec.going_on_from(job.id)

    return copier.copy("retry", job, understand)


render_router = Router(prefix="/v1/render", tags=["jobs"])


@render_router.post("", response_model=RenderOut)
def render_task(body: RenderTaskIn, services: The, caller: TheCaller) -> RenderOut:
    """Exactly what would be launched for a job file; nothing is launched."""
    understood, rendered = understand(body, code_of(services, body, caller))
    spec = understood.spec
    places_of(services, understood.notify)
    past = past_for(services, spec)
    notes = accept(spec, past, force=True) + check_parent_job(services, spec, caller)
    refused = _refusals(services, body, spec, caller, past)
    return preview(body, understood, rendered, notes=notes, refusals=refused)


def _refusals(
    services: Services, body: RenderTaskIn, spec: JobSpec, caller: Caller, past: HistoricalLifetimes
) -> Iterator[HoldfastError]:
    """What a submission of the same body would be refused for."""
    try:
        project = project_of(caller, body, spec)
    except REFUSED as error:
        yield error
        return  # The other checks need a project.
    yield from refusals(services, spec, caller, project, past, force=body.force)
    try:
        check_budgets(services, caller, project)
    except REFUSED as error:
        yield error
