"""What the trouble of a job looks like, and what to do about it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Query

from holdfast.api.hint_schemas import EvidenceOut, HintOut, HintsOut
from holdfast.api.logs import sources
from holdfast.api.services import Services, The, TheJob
from holdfast.domain.hints import Hint, Printed, failed_attempt, hints
from holdfast.domain.job import Job
from holdfast.domain.spec import JobSpec
from holdfast.errors import LauncherUnreachable
from holdfast.ports import Launcher, LogSource

router = APIRouter(prefix="/v1/jobs/{job_id}/hints", tags=["history"])

HEAD_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 192 * 1024
"""Of each log: how ranks met stands at its beginning, and what they died of at its end. More hold up the answer, fewer miss it."""
MOST_LOGS: Final = 64
"""That are read for one answer. More hold it up, fewer do not see what is on few ranks alone."""
MOST_POINTS: Final = 2000
"""Of the newest; the same."""


@router.get("", response_model=HintsOut)
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
            printed = await _printed(services, job, attempt)
        except LauncherUnreachable as error:
            unread = error.detail
    found = await asyncio.to_thread(hints, facts, points, printed)
    return HintsOut(
        hints=[_view(hint) for hint in found],
        attempt=attempt if printed else None,
        unread=unread,
    )


async def _printed(services: Services, job: Job, attempt: int) -> list[Printed]:
    """The beginnings and ends of the logs of an attempt.

    Raises:
        LauncherUnreachable: nobody can be asked for them.
    """
    spec = await asyncio.to_thread(services.journal.submission, job.id)
    engine = JobSpec.model_validate(spec.spec).engine
    if engine not in services.launchers:
        raise LauncherUnreachable(f"this service runs without the {engine} launcher")
    launcher = services.launchers[engine]
    of_attempt = [
        (key, source)
        for key, source in await sources(services, job, launcher)
        if source.attempt == attempt
    ]
    return [
        await asyncio.to_thread(_read, launcher, key, source)
        for key, source in of_attempt[:MOST_LOGS]
    ]


def _read(launcher: Launcher, key: str, source: LogSource) -> Printed:
    head = launcher.read_log(key, source, 0, HEAD_BYTES)
    rest = max(HEAD_BYTES, source.size_bytes - TAIL_BYTES)
    tail = launcher.read_log(key, source, rest, TAIL_BYTES)
    text = b"\n".join((head, tail)) if rest > HEAD_BYTES else head + tail
    return Printed(source.attempt, source.node, source.rank, text.decode(errors="replace"))


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
