"""Live streams (SSE) of events of one job or all jobs, resumable with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from holdfast.api.auth.stream_access import StreamAccess, TheStreamAccess, end_stream_on_outage
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.workers import MAX_COUNT
from holdfast.api.views.jobs import event_view
from holdfast.domain.jobs.job import Job, State
from holdfast.errors import BadRequest
from holdfast.services import Services

router = Router(prefix="/v1", tags=["streams"])

POLL_S: Final = 0.25
"""Seconds between polls of a stream.

A lower value adds queries per client; a higher value is a visible delay.
"""


def last_event_id(
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[
        str | None,
        Query(
            description="Like Last-Event-ID, for clients that cannot set it; `now` sends only future events."
        ),
    ] = None,
) -> str | None:
    """The last event the client received; None at its first connection."""
    return last_event_id or after


LastEventId = Annotated[str | None, Depends(last_event_id)]


def cursor_of(place: LastEventId, services: TheServices) -> int:
    """Parse the position of a client.

    Raises:
        BadRequest: it is not the id of an event.
    """
    if place == "now":
        return services.queries.newest_cursor()
    if place is not None and not (place.isdecimal() and int(place) <= MAX_COUNT):
        raise BadRequest(
            f"Last-Event-ID {place!r} is not the id of an event; omit it to start at the beginning"
        )
    return int(place or 0)


Cursor = Annotated[int, Depends(cursor_of)]


@router.get("/jobs/{job_id}/events/stream", response_class=EventSourceResponse)
async def stream_job(
    job: TheJob, services: TheServices, permit: TheStreamAccess, cursor: Cursor
) -> AsyncIterator[ServerSentEvent]:
    """Stream past and future events of a job; ends with the event `end` once the job has ended."""
    async for message in _follow(services, permit, cursor, job):
        yield message


@router.get("/stream", response_class=EventSourceResponse)
async def stream_all(
    services: TheServices, permit: TheStreamAccess, cursor: Cursor
) -> AsyncIterator[ServerSentEvent]:
    """Stream past and future events of all jobs in the caller's projects."""
    async for message in _follow(services, permit, cursor, None):
        yield message


async def _follow(
    services: Services, permit: StreamAccess, place: int, job: Job | None
) -> AsyncIterator[ServerSentEvent]:
    job_id = job.id if job else None
    with end_stream_on_outage():
        while not services.stopping.is_set() and await permit.is_allowed(
            job.project if job else None
        ):
            # The state is read before the events: a job that has ended then has all its events in the journal.
            ended = job_id is not None and await asyncio.to_thread(_has_ended, services, job_id)
            seen = permit.caller.visible_projects if job is None else None
            while facts := await asyncio.to_thread(
                services.queries.stream, after=place, job_id=job_id, projects=seen
            ):
                for fact in facts:
                    yield ServerSentEvent(
                        id=str(fact.cursor), event=fact.kind, data=event_view(fact)
                    )
                place = facts[-1].cursor
            if ended:
                yield ServerSentEvent(event="end", data={})
                return
            await asyncio.sleep(POLL_S)


def _has_ended(services: Services, job_id: str) -> bool:
    return services.journal.read(job_id).state is State.ENDED
