"""What the attempts of a job came from."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from holdfast.api.routing import Router
from holdfast.api.services import Services, The, TheJob
from holdfast.domain.job import Job
from holdfast.domain.manifests import manifests
from holdfast.domain.spec import JobSpec
from holdfast.errors import NotFound

router = Router(prefix="/v1/jobs/{job_id}/manifest", tags=["history"])


@router.get("", response_model=dict[str, Any])
def show_manifest(
    job: TheJob,
    services: The,
    attempt: Annotated[
        int | None, Query(ge=1, description="Of this one, instead of the newest that told one.")
    ] = None,
) -> dict[str, Any]:
    """The manifest of a run as its worker told it before its first step, with what the service knows under `holdfast`."""
    return newest_manifest(services, job, attempt)


def newest_manifest(services: Services, job: Job, attempt: int | None = None) -> dict[str, Any]:
    """The manifest of the newest attempt that told one, or of `attempt`.

    Raises:
        NotFound: none was told.
    """
    spec = JobSpec.stored(services.journal.submission(job.id).spec)
    facts = (fact.event for fact in services.journal.events(job.id))
    told = manifests(job.id, spec, facts)
    number = attempt or max(told, default=0)
    if number not in told:
        which = f"attempt {attempt} of job {job.id}" if attempt else f"job {job.id}"
        raise NotFound(f"{which} has told no manifest; a script does where it enters run.steps()")
    return told[number]
