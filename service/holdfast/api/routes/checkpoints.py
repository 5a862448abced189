"""Checkpoints of a job: every try to save, and what became of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from holdfast_worker.protocol.policies import RetentionOwner

from holdfast.api.dependencies import The, TheJob
from holdfast.api.routing import Router
from holdfast.api.schemas.checkpoints import CheckpointPage
from holdfast.api.views.checkpoints import checkpoint_notes, checkpoint_view, tidying_view, told
from holdfast.domain.checkpoints.history import CheckpointAttempt, Fate
from holdfast.domain.checkpoints.retention import superseded
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import BadRequest

router = Router(prefix="/v1")


@router.get("/jobs/{job_id}/checkpoints", response_model=CheckpointPage, tags=["history"])
def list_checkpoints(
    job: TheJob,
    services: The,
    state: Annotated[list[Fate] | None, Query(description="Only those in these states.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[str | None, Query(description="`next` of the page before.")] = None,
) -> CheckpointPage:
    """Every try to save and what became of it, newest first, by what was reported: no store is asked."""
    saves = told(services.journal.events(job.id)).all()
    spec = JobSpec.stored(services.journal.submission(job.id).spec)
    tidying = tidying_view(spec, services.upkeep.of([job.id]).get(job.id))
    checkpoint = spec.holdfast.checkpoint
    waiting = superseded(saves, checkpoint.keep) if checkpoint else set[int]()
    by = RetentionOwner(tidying.by) if tidying else None
    rest = [save for save in _after(saves, cursor) if not state or save.fate in state]
    page = rest[:limit]
    return CheckpointPage(
        checkpoints=[
            checkpoint_view(save, removed_by=by if save.seq in waiting else None) for save in page
        ],
        next=str(page[-1].seq) if len(rest) > limit else None,
        tidying=tidying,
        notes=list(checkpoint_notes(tidying, saves, len(waiting))),
    )


def _after(saves: list[CheckpointAttempt], cursor: str | None) -> list[CheckpointAttempt]:
    """Those behind the one at which a page ended.

    Raises:
        BadRequest: no page ended there.
    """
    if cursor is None:
        return saves
    places = [place for place, save in enumerate(saves) if str(save.seq) == cursor]
    if not places:
        raise BadRequest(f"cursor {cursor!r} is not one that a page named; begin without a cursor")
    return saves[places[0] + 1 :]
