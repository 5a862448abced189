"""Two jobs side by side: what is other in the second, and how much slower it is."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from holdfast.api.auth import TheCaller, project_seen
from holdfast.api.bills import job_bill
from holdfast.api.diff_schemas import DifferenceOut, DiffOut
from holdfast.api.manifests import newest_manifest
from holdfast.api.routing import Router
from holdfast.api.services import The, TheJob
from holdfast.domain.differences import differences, pace
from holdfast.errors import NotFound

router = Router(prefix="/v1/jobs/{job_id}/diff", tags=["history"])


@router.get("", response_model=DiffOut)
def show_diff(
    job: TheJob,
    services: The,
    caller: TheCaller,
    other: Annotated[str, Query(max_length=64, description="Id of the job it is compared with.")],
) -> DiffOut:
    """What is other in the newest manifest of another job than in that of this one."""
    if project_seen(services, caller, other) is None:
        raise NotFound(f"there is no job {other}")
    second = services.journal.read(other)
    found = differences(newest_manifest(services, job), newest_manifest(services, second))
    return DiffOut(
        before=job.id,
        after=second.id,
        steps_per_hour_before=pace(job_bill(services, job)[0]),
        steps_per_hour_after=pace(job_bill(services, second)[0]),
        differences=[
            DifferenceOut(kind=one.kind, key=one.key, before=one.before, after=one.after)
            for one in found
        ],
    )
