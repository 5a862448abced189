"""The beginnings and ends of the logs of an attempt, for whoever looks for signs in them.

What the trouble of a job looks like, and what to do about it.

What the attempts of a job came from.

Two jobs side by side: what is other in the second, and how much slower it is.

Which ranks of a job were heard of, and which are missing.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import Query

from holdfast.api.auth.authentication import TheCaller, project_seen
from holdfast.api.dependencies import The, TheJob
from holdfast.api.routes.billing import job_bill
from holdfast.api.routes.logs import sources
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
from holdfast.domain.diagnostics.hints import Hint, Printed, failed_attempt, hints
from holdfast.domain.diagnostics.manifests import manifests
from holdfast.domain.diagnostics.rank_presence import roll
from holdfast.domain.diagnostics.run_diff import differences, pace
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import gpus
from holdfast.domain.jobs.job import Job
from holdfast.errors import LauncherUnreachable, NotFound
from holdfast.ports import Launcher, LogSource
from holdfast.services import Services

HEAD_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 192 * 1024
"""Of each log: how ranks met stands at its beginning, and what they died of at its end. More hold up the answer, fewer miss it."""
MOST_LOGS: Final = 256
"""That are read for one answer. More hold it up, fewer do not see what is on few ranks alone."""


async def excerpts(services: Services, job: Job, attempt: int) -> list[Printed]:
    """What each node and rank of an attempt printed, as far as that is read.

    Raises:
        LauncherUnreachable: nobody can be asked for it.
    """
    submission = await asyncio.to_thread(services.journal.submission, job.id)
    engine = JobSpec.stored(submission.spec).engine
    if engine not in services.launchers:
        raise LauncherUnreachable(f"this service runs without the {engine} launcher")
    launcher = services.launchers[engine]
    found = await sources(services, job, launcher)
    mine = [(key, source) for key, source in found if source.attempt == attempt]
    return [
        await asyncio.to_thread(_read, launcher, key, source) for key, source in mine[:MOST_LOGS]
    ]


def _read(launcher: Launcher, key: str, source: LogSource) -> Printed:
    head = launcher.read_log(key, source, 0, HEAD_BYTES)
    rest = max(HEAD_BYTES, source.size_bytes - TAIL_BYTES)
    tail = launcher.read_log(key, source, rest, TAIL_BYTES)
    text = b"\n".join((head, tail)) if rest > HEAD_BYTES else head + tail
    return Printed(source.attempt, source.node, source.rank, text.decode(errors="replace"))


hints_router = Router(prefix="/v1/jobs/{job_id}/hints", tags=["history"])

MOST_POINTS: Final = 2000
"""Of the newest. More hold up the answer, fewer do not see a leak that is slow."""


@hints_router.get("", response_model=HintsOut)
async def list_hints(
    job: TheJob,
    services: The,
    *,
    logs: Annotated[bool, Query(description="Whether to read the logs, too.")] = True,
) -> HintsOut:
    """What the trouble of a job looks like, by how it ended, what its ranks printed and what they measured."""
    recorded = await asyncio.to_thread(services.journal.events, job.id)
    facts = [fact.event for fact in recorded]
    points = await asyncio.to_thread(services.reading.points, job.id, limit=MOST_POINTS)
    attempt, unread, printed = failed_attempt(facts) or job.attempt or None, None, list[Printed]()
    if logs and attempt:
        try:
            printed = await excerpts(services, job, attempt)
        except LauncherUnreachable as error:
            unread = error.detail
    found = await asyncio.to_thread(hints, facts, points, printed)
    return HintsOut(
        hints=[_view(hint) for hint in found],
        attempt=attempt if printed else None,
        unread=unread,
    )


def _view(hint: Hint) -> HintOut:
    return HintOut(
        trouble=hint.trouble,
        looks=hint.looks,
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


differences_router = Router(prefix="/v1/jobs/{job_id}/diff", tags=["history"])


@differences_router.get("", response_model=DiffOut)
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


rolls_router = Router(prefix="/v1/jobs/{job_id}/logs", tags=["logs"])


@rolls_router.get("/ranks", response_model=RankPresenceOut)
async def show_rank_presence(
    job: TheJob,
    services: The,
    *,
    attempt: Annotated[
        int | None, Query(ge=1, description="Which attempt; none given: the newest.")
    ] = None,
) -> RankPresenceOut:
    """The ranks of an attempt that have printed anything, of how many, and those that have not."""
    number = attempt or job.attempt
    if not 1 <= number <= job.attempt:
        raise NotFound(f"job {job.id} has {job.attempt} attempts; there is no attempt {number}")
    recorded = await asyncio.to_thread(services.journal.events, job.id)
    submission = await asyncio.to_thread(services.journal.submission, job.id)
    spec = JobSpec.stored(submission.spec)
    printed = await excerpts(services, job, number)
    found = roll(number, [fact.event for fact in recorded], printed, gpus(spec) or None)
    return RankPresenceOut(
        attempt=number,
        world_size=found.world_size,
        seen=[SeenOut(rank=rank, node=node) for rank, node in found.seen],
        missing=list(found.missing),
    )
