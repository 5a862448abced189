"""What the trouble of a job looks like, and what to do about it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import Query

from holdfast.api.excerpts import excerpts
from holdfast.api.hint_schemas import EvidenceOut, HintOut, HintsOut
from holdfast.api.routing import Router
from holdfast.api.services import The, TheJob
from holdfast.domain.hints import Hint, Printed, failed_attempt, hints
from holdfast.errors import LauncherUnreachable

router = Router(prefix="/v1/jobs/{job_id}/hints", tags=["history"])

MOST_POINTS: Final = 2000
"""Of the newest. More hold up the answer, fewer do not see a leak that is slow."""


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
