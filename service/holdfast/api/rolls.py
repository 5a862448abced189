"""Which ranks of a job were heard of, and which are missing."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query

from holdfast.api.excerpts import excerpts
from holdfast.api.log_pages import RollOut, SeenOut
from holdfast.api.routing import Router
from holdfast.api.services import The, TheJob
from holdfast.domain.roll import roll
from holdfast.domain.safety import gpus
from holdfast.domain.spec import JobSpec
from holdfast.errors import NotFound

router = Router(prefix="/v1/jobs/{job_id}/logs", tags=["logs"])


@router.get("/ranks", response_model=RollOut)
async def call_the_roll(
    job: TheJob,
    services: The,
    *,
    attempt: Annotated[
        int | None, Query(ge=1, description="Which attempt; none given: the newest.")
    ] = None,
) -> RollOut:
    """The ranks of an attempt that have printed anything, of how many, and those that have not."""
    number = attempt or job.attempt
    if not 1 <= number <= job.attempt:
        raise NotFound(f"job {job.id} has {job.attempt} attempts; there is no attempt {number}")
    recorded = await asyncio.to_thread(services.journal.events, job.id)
    submission = await asyncio.to_thread(services.journal.submission, job.id)
    spec = JobSpec.stored(submission.spec)
    printed = await excerpts(services, job, number)
    found = roll(number, [fact.event for fact in recorded], printed, gpus(spec) or None)
    return RollOut(
        attempt=number,
        world_size=found.world_size,
        seen=[SeenOut(rank=rank, node=node) for rank, node in found.seen],
        missing=list(found.missing),
    )
