"""Diagnostics of a job: hints, manifests, comparison of two jobs, and rank presence."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import Query

from holdfast.api.auth.authentication import TheCaller
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routes.billing import job_bill
from holdfast.api.routes.logs import JobLog, job_logs
from holdfast.api.routing import Router
from holdfast.api.schemas.diagnostics import (
    DifferenceOut,
    DiffOut,
    EvidenceOut,
    HintOut,
    HintsOut,
    RankPresenceOut,
    SeenOut,
)
from holdfast.api.views.throughput import mean_rates
from holdfast.domain.diagnostics.hints import Hint, LogExcerpt, failed_attempt, find_hints
from holdfast.domain.diagnostics.manifests import manifests
from holdfast.domain.diagnostics.rank_presence import observed_ranks
from holdfast.domain.diagnostics.run_diff import differences, steps_per_hour
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import accelerator_count
from holdfast.domain.jobs.job import Job
from holdfast.errors import LauncherUnreachable, NotFound
from holdfast.services import Services

HEAD_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 192 * 1024
"""Bytes read of each log: the start shows how ranks connected, the end shows their failure.

A higher value delays the response; a lower one misses lines.
"""
MOST_LOGS: Final = 256
"""Maximum number of logs read for one response.

A higher value delays it; a lower one misses problems of single ranks.
"""


async def excerpts(
    services: Services, job: Job, attempt: int, tail_bytes: int = TAIL_BYTES
) -> list[LogExcerpt]:
    """Read the start and end of the log of each node and rank of an attempt.

    Raises:
        LauncherUnreachable: the launcher is not connected.
    """
    found = await job_logs(services, job)
    mine = [log for log in found if log.source.attempt == attempt]
    return [await asyncio.to_thread(_read, log, tail_bytes) for log in mine[:MOST_LOGS]]


def _read(log: JobLog, tail_bytes: int) -> LogExcerpt:
    source = log.source
    head = log.read(0, HEAD_BYTES)
    rest = max(HEAD_BYTES, source.size_bytes - tail_bytes)
    tail = log.read(rest, tail_bytes) if tail_bytes else b""
    text = b"\n".join((head, tail)) if rest > HEAD_BYTES else head + tail
    return LogExcerpt(source.attempt, source.node, source.rank, text.decode(errors="replace"))


hints_router = Router(prefix="/v1/jobs/{job_id}/hints", tags=["history"])

MOST_POINTS: Final = 2000
"""Number of newest points read.

A higher value delays the response; a lower one misses slow memory leaks.
"""


@hints_router.get("", response_model=HintsOut)
async def list_hints(
    job: TheJob,
    services: TheServices,
    *,
    logs: Annotated[bool, Query(description="Whether to read the logs as well.")] = True,
) -> HintsOut:
    """Show probable problems of a job, from its end, logs and metrics."""
    recorded = await asyncio.to_thread(services.journal.events, job.id)
    facts = [fact.event for fact in recorded]
    points = await asyncio.to_thread(services.queries.points, job.id, limit=MOST_POINTS)
    attempt, unread, printed = (
        failed_attempt(facts) or job.attempt or None,
        None,
        list[LogExcerpt](),
    )
    if logs and attempt:
        try:
            printed = await excerpts(services, job, attempt)
        except LauncherUnreachable as error:
            unread = error.detail
    found = await asyncio.to_thread(find_hints, facts, points, printed)
    return HintsOut(
        hints=[_view(hint) for hint in found],
        attempt=attempt if printed else None,
        unread=unread,
    )


def _view(hint: Hint) -> HintOut:
    return HintOut(
        trouble=hint.pattern,
        looks=hint.symptom,
        remedy=hint.remedy,
        page=hint.page or None,
        evidence=[
            EvidenceOut(attempt=one.attempt, node=one.node, rank=one.rank, text=one.text)
            for one in hint.evidence
        ],
    )


manifests_router = Router(prefix="/v1/jobs/{job_id}/manifest", tags=["history"])


@manifests_router.get("", response_model=dict[str, Any])
def show_manifest(
    job: TheJob,
    services: TheServices,
    attempt: Annotated[
        int | None, Query(ge=1, description="Attempt; default: the newest with a manifest.")
    ] = None,
) -> dict[str, Any]:
    """Show the manifest that the worker reported before its first step.

    The service's data is under `holdfast`.
    """
    return newest_manifest(services, job, attempt)


def newest_manifest(services: Services, job: Job, attempt: int | None = None) -> dict[str, Any]:
    """Return the newest manifest, or that of `attempt`.

    Raises:
        NotFound: no manifest was reported.
    """
    facts = (fact.event for fact in services.journal.events(job.id))
    by_attempt = manifests(job.id, facts)
    number = attempt or max(by_attempt, default=0)
    if number not in by_attempt:
        which = f"attempt {attempt} of job {job.id}" if attempt else f"job {job.id}"
        raise NotFound(f"{which} has no manifest; a script reports one when it enters run.steps()")
    return by_attempt[number]


differences_router = Router(prefix="/v1/jobs/{job_id}/diff", tags=["history"])


@differences_router.get("", response_model=DiffOut)
def show_diff(
    job: TheJob,
    services: TheServices,
    caller: TheCaller,
    other: Annotated[str, Query(max_length=64, description="Id of the job to compare with.")],
) -> DiffOut:
    """Compare the newest manifest of another job with the one of this job."""
    if services.project_seen(caller, other) is None:
        raise NotFound(f"there is no job {other}")
    second = services.journal.read(other)
    found = differences(newest_manifest(services, job), newest_manifest(services, second))
    return DiffOut(
        before=job.id,
        after=second.id,
        steps_per_hour_before=steps_per_hour(job_bill(services, job)[0]),
        steps_per_hour_after=steps_per_hour(job_bill(services, second)[0]),
        rates_before=mean_rates(services, job),
        rates_after=mean_rates(services, second),
        differences=[
            DifferenceOut(kind=one.category, key=one.key, before=one.before, after=one.after)
            for one in found
        ],
    )


ranks_router = Router(prefix="/v1/jobs/{job_id}/logs", tags=["logs"])


@ranks_router.get("/ranks", response_model=RankPresenceOut)
async def show_rank_presence(
    job: TheJob,
    services: TheServices,
    *,
    attempt: Annotated[int | None, Query(ge=1, description="Attempt; default: the newest.")] = None,
) -> RankPresenceOut:
    """Show the ranks of an attempt that have printed output.

    Also the expected number of ranks, and the missing ones.
    """
    number = attempt or job.attempt
    if not 1 <= number <= job.attempt:
        raise NotFound(f"job {job.id} has {job.attempt} attempts; attempt {number} does not exist")
    recorded = await asyncio.to_thread(services.journal.events, job.id)
    submission = await asyncio.to_thread(services.journal.submission, job.id)
    spec = JobSpec.from_stored(submission.spec)
    printed = await excerpts(services, job, number)
    found = observed_ranks(
        number, [fact.event for fact in recorded], printed, accelerator_count(spec) or None
    )
    return RankPresenceOut(
        attempt=number,
        world_size=found.world_size,
        seen=[SeenOut(rank=rank, node=node) for rank, node in found.seen],
        missing=list(found.missing),
    )
