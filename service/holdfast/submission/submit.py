"""Jobs: submit, list, look, cancel, preempt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from holdfast.api.routes.code_uploads import uploads_of
from holdfast.api.schemas.jobs import (
    TaskIn,
)
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.events import DEFAULT_PROJECT, Submitted
from holdfast.domain.jobfile.parser import ParsedJobFile
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import accept
from holdfast.domain.jobs.job import Job
from holdfast.domain.notifications.channels import Destination
from holdfast.errors import BadChannel, BadJobFile, Flaw, Forbidden
from holdfast.rendering import Rendered
from holdfast.services import Services
from holdfast.store.ids import new_job_id
from holdfast.store.journal import Request
from holdfast.submission.admission import check_parent_job, past_for, refusals


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
    understood: ParsedJobFile,
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
    notes = accept(spec, past, force=force) + check_parent_job(services, spec, caller)
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
    understood: ParsedJobFile,
    event: Submitted,
    request: Request | None,
    doer: Actor,
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


def places_of(services: Services, urls: Sequence[str]) -> list[tuple[str, Destination]]:
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
