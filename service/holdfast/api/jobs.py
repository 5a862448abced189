"""Jobs: submit, list, look, cancel, preempt."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

from fastapi import Depends, Header, Query, Response
from pydantic import StringConstraints

from holdfast.api.admission import refusals
from holdfast.api.auth import TheCaller, TheDoer
from holdfast.api.code import uploads_of
from holdfast.api.control import carry_out
from holdfast.api.forebears import notes_of_forebear
from holdfast.api.routing import Router
from holdfast.api.safety import past_for
from holdfast.api.schemas import (
    MAX_SEQ,
    CancelIn,
    EventOut,
    JobOut,
    JobPage,
    PointOut,
    PreemptIn,
    TaskIn,
)
from holdfast.api.services import Services, The, TheJob
from holdfast.api.versions import etag
from holdfast.api.views import (
    as_allowed,
    event_view,
    job_views,
    point_view,
    submitted_view,
    why_no_preemption,
)
from holdfast.api.windows import TheWindow
from holdfast.domain import wishes
from holdfast.domain.carried import Checkout
from holdfast.domain.channels import Place
from holdfast.domain.deeds import Doer
from holdfast.domain.events import DEFAULT_PROJECT, Submitted
from holdfast.domain.job import Job
from holdfast.domain.jobfile import Understood
from holdfast.domain.rights import Action, Caller
from holdfast.domain.safety import accept
from holdfast.domain.spec import JobSpec
from holdfast.errors import BadChannel, BadJobFile, BadRequest, Flaw, Forbidden, NotPossibleNow
from holdfast.ports import Preemptible
from holdfast.preview import understand
from holdfast.rendering import Rendered
from holdfast.store.ids import new_job_id
from holdfast.store.journal import Request
from holdfast.store.reading import TagFilter

router = Router(prefix="/v1")

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


@router.post("/jobs", status_code=201, response_model=JobOut, tags=["jobs"])
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


@router.get("/jobs", response_model=JobPage, tags=["jobs"])
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


@router.get("/jobs/{job_id}", response_model=JobOut, tags=["jobs"])
def show_job(job: TheJob, services: The, caller: TheCaller, response: Response) -> JobOut:
    """One job as it is now. Its `ETag` is the number of its last fact."""
    response.headers["ETag"] = etag(job)
    return as_allowed(job_views(services, [job]), caller)[0]


@router.post("/jobs/{job_id}/cancel", status_code=202, response_model=JobOut, tags=["jobs"])
def cancel_job(
    job: TheJob, services: The, caller: TheCaller, doer: TheDoer, body: CancelIn | None = None
) -> JobOut:
    """Ask for an end. The job is `stopping` when this returns, `cancelled` once its nodes are gone."""
    reason = (body or CancelIn()).reason
    job = carry_out(
        services,
        job,
        lambda job: wishes.cancel(job, services.clock.now(), reason, caller.name),
        lambda job: doer.did("job.cancel", job.id, {"state": job.status}, {"reason": reason}),
    )
    return job_views(services, [job])[0]


@router.post("/jobs/{job_id}/preempt", status_code=202, response_model=JobOut, tags=["jobs"])
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


@router.get("/jobs/{job_id}/events", response_model=list[EventOut], tags=["history"])
def list_events(
    job: TheJob,
    services: The,
    after: Annotated[
        int, Query(ge=0, le=MAX_SEQ, description="Only events with a greater seq.")
    ] = 0,
) -> list[EventOut]:
    """The facts of a job in order."""
    return [event_view(fact) for fact in services.journal.events(job.id, after_seq=after)]


@router.get("/jobs/{job_id}/metrics", response_model=list[PointOut], tags=["history"])
def list_metrics(
    job: TheJob, services: The, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> list[PointOut]:
    """The newest points that workers reported, oldest first."""
    return [point_view(point) for point in services.reading.points(job.id, limit=limit)]


def code_of(services: Services, body: TaskIn, caller: Caller) -> str | None:
    """The uploaded code that a request names, as `workdir` of its job.

    Raises:
        Forbidden: the caller may upload none.
        NotPossibleNow: the service takes none.
    """
    return uploads_of(services, caller).ref(caller.name, body.code) if body.code else None


def project_of(caller: Caller, body: TaskIn, spec: JobSpec) -> str:
    """The project of a new job, in which this caller may submit."""
    named = body.project or spec.holdfast.project or body.default_project
    project = named or caller.home(Action.SUBMIT, DEFAULT_PROJECT)
    if not named and not caller.belongs(project):
        raise Forbidden(
            "say in which project: --project, or holdfast.project in the job file; holdfast projects list names yours"
        )
    caller.require(Action.SUBMIT, project)
    return project


def own_key(key: str, caller: Caller) -> str:
    """A key as it is kept: nobody is answered with the job of another who had the same idea."""
    if not caller.name:
        return key
    return f"{caller.name}:{hashlib.sha256(key.encode()).hexdigest()}"


def submission(
    services: Services,
    understood: Understood,
    rendered: Rendered,
    *,
    caller: Caller,
    project: str,
    force: bool,
) -> Submitted:
    """The fact that begins a new job.

    Raises:
        NotPossibleNow: the project takes no new jobs.
        Forbidden: it may not run on the service's machine.
        BadJobFile: this service does not launch there, it names what it may not use, its deadline is over, it would lose its work on spot nodes, or it cannot go on from the job that it names.
    """
    spec = understood.spec
    past = past_for(services, spec)
    for error in refusals(services, spec, caller, project, past, force=force):
        raise error
    notes = accept(spec, past, force=force) + notes_of_forebear(services, spec, caller)
    return Submitted(
        at=services.clock.now(),
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        task=rendered.text,
        notes=(*understood.notes, *rendered.notes, *notes),
        by=caller.name,
        project=project,
        confined=not caller.is_trusted,
    )


def record(
    services: Services,
    understood: Understood,
    event: Submitted,
    request: Request | None,
    doer: Doer,
) -> Job:
    """The new job, or the one of the same request that came at the same time."""
    job_id = new_job_id(event.at)
    sealed = services.secrets.seal(job_id, understood.secrets)
    tidied_by = understood.spec.tidied_by
    places = places_of(services, understood.notify)
    told = services.channels.of_job(job_id, event.project, event.by, places)
    return services.journal.submit(
        job_id, event, request, sealed, tidied_by, channels=told, doer=doer
    )


def places_of(services: Services, urls: Sequence[str]) -> list[tuple[str, Place]]:
    """Where a job file wants its news to go.

    Raises:
        BadJobFile: nothing can be sent to one of them.
    """
    found, flaws = [], []
    for number, url in enumerate(urls):
        try:
            found.append((url, services.messenger.place(url)))
        except BadChannel as error:
            told = error.detail.removeprefix("url: ")
            flaws.append(Flaw(f"#/holdfast/notify/{number}", told))
    if flaws:
        raise BadJobFile(tuple(flaws))
    return found
