"""Checkpoints of a job: every attempted save and its result."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from holdfast_worker.protocol.policies import RetentionOwner

from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.checkpoints import CheckpointPage
from holdfast.api.views.checkpoints import (
    checkpoint_history,
    checkpoint_notes,
    checkpoint_view,
    retention_view,
)
from holdfast.domain.checkpoints.history import CheckpointAttempt, Fate
from holdfast.domain.checkpoints.retention import superseded
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import BadRequest

router = Router(prefix="/v1")


@router.get("/jobs/{job_id}/checkpoints", response_model=CheckpointPage, tags=["history"])
def list_checkpoints(
    job: TheJob,
    services: TheServices,
    state: Annotated[list[Fate] | None, Query(description="Only these states.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[str | None, Query(description="`next` of the previous page.")] = None,
) -> CheckpointPage:
    """List every attempted save with its result, newest first.

    The list is computed from worker reports; the store is not read.
    """
    saves = checkpoint_history(services.journal.events(job.id)).attempts()
    spec = JobSpec.from_stored(services.journal.submission(job.id).spec)
    tidying = retention_view(spec, services.retention_queue.statuses([job.id]).get(job.id))
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
    """Return the saves after the end of a page.

    Raises:
        BadRequest: the cursor is unknown.
    """
    if cursor is None:
        return saves
    places = [place for place, save in enumerate(saves) if str(save.seq) == cursor]
    if not places:
        raise BadRequest(
            f"cursor {cursor!r} was not returned by an earlier page; start without a cursor"
        )
    return saves[places[0] + 1 :]
