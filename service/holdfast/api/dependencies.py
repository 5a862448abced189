"""Dependencies of routes: services, the job of the path, `ETag` and `If-Match`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

from holdfast.domain.jobs.job import Job
from holdfast.errors import PreconditionFailed
from holdfast.services import Services


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


TheServices = Annotated[Services, Depends(_services)]


def _job(job_id: str, services: TheServices) -> Job:
    return services.journal.read(job_id)


TheJob = Annotated[Job, Depends(_job)]
"""The job of the path; an unknown one is answered with 404 before the route runs."""

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description="Change the job only if this is still its ETag."),
]


def etag(job: Job) -> str:
    """Return the version of a job: the number of its newest event."""
    return f'"{job.seq}"'


def check(if_match: str | None, job: Job) -> None:
    """Accept a change that names no version, or the current one.

    Raises:
        PreconditionFailed: it names others.
    """
    if if_match is None:
        return
    named = [tag.strip() for tag in if_match.split(",")]
    if "*" not in named and etag(job) not in named:
        raise PreconditionFailed(
            f"job {job.id} is at version {etag(job)}, not at {if_match}; read it again, then repeat the request if it still applies"
        )
