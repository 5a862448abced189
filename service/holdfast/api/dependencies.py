"""What routes are given to work with."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from holdfast.domain.jobs.job import Job
from holdfast.services import Services


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


The = Annotated[Services, Depends(_services)]


def _job(job_id: str, services: The) -> Job:
    return services.journal.read(job_id)


TheJob = Annotated[Job, Depends(_job)]
"""The job of the path; a request for one that does not exist is answered with 404 before the route runs."""
