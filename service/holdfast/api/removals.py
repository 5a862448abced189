"""Removal of ended jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from holdfast.api.auth import TheCaller, TheDoer
from holdfast.api.removal_schemas import RemovalOut
from holdfast.api.routing import Router
from holdfast.api.services import The
from holdfast.api.views import NOT_ONES_OWN
from holdfast.domain.deeds import Deed
from holdfast.domain.job import Job
from holdfast.errors import Forbidden

router = Router(prefix="/v1/jobs", tags=["jobs"])


@router.delete("/{job_id}", status_code=202, response_model=RemovalOut)
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

    def deed(job: Job) -> Deed:
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
