"""Logs of a job by attempt, node and rank: list, read in parts, follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final

from fastapi import Depends, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from holdfast.api.auth.stream_access import TheStreamAccess, end_stream_on_outage
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routes.streams import POLL_S, LastEventId
from holdfast.api.routing import Router
from holdfast.api.schemas.jobs import LogChunk, LogOut
from holdfast.api.schemas.workers import MAX_COUNT
from holdfast.domain.jobfile.spec import JobSpec, launcher_name
from holdfast.domain.jobs.job import Job, State
from holdfast.errors import BadRequest, LauncherUnreachable, NotFound
from holdfast.ports import Launcher, LogSource
from holdfast.services import Services

router = Router(prefix="/v1/jobs/{job_id}/logs", tags=["logs"])

CHUNK_BYTES: Final = 64 * 1024
"""Maximum bytes of a stream message.

A lower value sends more messages; a higher value uses more memory for slow clients.
"""

Node = Annotated[
    int | None, Query(ge=0, description="Node; default: the first, or the one of the rank.")
]
Rank = Annotated[int | None, Query(ge=0, description="Global rank; default: the log of the node.")]


def _launcher(job: TheJob, services: TheServices) -> Launcher:
    engine = JobSpec.from_stored(services.journal.submission(job.id).spec).engine
    if engine not in services.launchers:
        raise LauncherUnreachable(f"this service runs without the {launcher_name(engine)} launcher")
    return services.launchers[engine]


TheLauncher = Annotated[Launcher, Depends(_launcher)]


@router.get("", response_model=list[LogOut])
async def list_logs(job: TheJob, services: TheServices, launcher: TheLauncher) -> list[LogOut]:
    """List the logs of a job."""
    return [
        LogOut(attempt=log.attempt, node=log.node, rank=log.rank, size_bytes=log.size_bytes)
        for _, log in await sources(services, job, launcher)
    ]


@router.get("/text", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def read_log(
    job: TheJob,
    services: TheServices,
    launcher: TheLauncher,
    *,
    attempt: Annotated[
        int | None, Query(ge=1, description="Attempt; default: the newest with a log.")
    ] = None,
    node: Node = None,
    rank: Rank = None,
    offset: Annotated[int, Query(ge=0, le=MAX_COUNT)] = 0,
    limit: Annotated[int, Query(ge=1, le=4 * 1024 * 1024)] = 1024 * 1024,
) -> Response:
    """Read a part of one log as text. `X-Next-Offset` is the offset of the next part."""
    found = _select(await sources(services, job, launcher), node, rank)
    if attempt is not None:
        found = [item for item in found if item[1].attempt == attempt]
    if not found:
        raise NotFound(
            f"job {job.id} has no such log; GET /v1/jobs/{job.id}/logs lists its logs, and the list is empty if the job never started"
        )
    key, source = found[-1]
    piece = await asyncio.to_thread(launcher.read_log, key, source, offset, limit)
    headers = {"X-Next-Offset": str(offset + len(piece)), "X-Attempt": str(source.attempt)}
    return Response(piece, media_type="text/plain; charset=utf-8", headers=headers)


@router.get("/stream", response_class=EventSourceResponse)
async def stream_log(
    job: TheJob,
    services: TheServices,
    launcher: TheLauncher,
    permit: TheStreamAccess,
    place: LastEventId,
    *,
    attempt: Annotated[int | None, Query(ge=1, description="Only this attempt.")] = None,
    node: Node = None,
    rank: Rank = None,
) -> AsyncIterator[ServerSentEvent]:
    """Follow a log over all attempts; ends with the event `end` once the job has ended."""
    at, offset = _parse_position(place)
    with end_stream_on_outage():
        while not services.stopping.is_set() and await permit.is_allowed(job.project):
            ended = (await asyncio.to_thread(services.journal.read, job.id)).state is State.ENDED
            for key, source in _select(await sources(services, job, launcher), node, rank):
                if source.attempt < at or (attempt is not None and source.attempt != attempt):
                    continue
                at, offset = source.attempt, offset if source.attempt == at else 0
                while piece := await asyncio.to_thread(_next_chunk, launcher, key, source, offset):
                    offset += len(piece)
                    text = piece.decode(errors="replace")
                    yield ServerSentEvent(
                        id=f"{at}:{offset}", event="log", data=LogChunk(attempt=at, text=text)
                    )
            if ended:
                yield ServerSentEvent(event="end", data={})
                return
            await asyncio.sleep(POLL_S)


def _parse_position(place: str | None) -> tuple[int, int]:
    """Parse attempt and offset from `attempt:offset`."""
    attempt, _, offset = (place or "1:0").partition(":")
    if not (attempt.isdecimal() and offset.isdecimal() and int(offset) <= MAX_COUNT):
        raise BadRequest(
            f"Last-Event-ID {place!r} is not a position in a log; omit it to start at the beginning"
        )
    return int(attempt), int(offset)


def _next_chunk(launcher: Launcher, key: str, source: LogSource, offset: int) -> bytes:
    """Read the next chunk, cut after its last newline if possible.

    No character is split.
    """
    piece = launcher.read_log(key, source, offset, CHUNK_BYTES)
    end = piece.rfind(b"\n") + 1
    return piece[:end] if end else piece


async def sources(services: Services, job: Job, launcher: Launcher) -> list[tuple[str, LogSource]]:
    """List all logs of all launches with their keys, by attempt, node and rank."""
    job = await asyncio.to_thread(services.journal.read, job.id)
    keys = [f"{job.id}-{launch}" for launch in range(1, job.launch + 1)]
    found = [
        (key, source) for key in keys for source in await services.call_launcher(launcher.logs(key))
    ]
    return sorted(found, key=lambda item: log_sort_key(item[1]))


def log_sort_key(source: LogSource) -> tuple[int, int, int]:
    """Sort by attempt, node and rank; -1 for the node's own output, which comes first."""
    return source.attempt, source.node, -1 if source.rank is None else source.rank


def _select(
    sources: Sequence[tuple[str, LogSource]], node: int | None, rank: int | None
) -> list[tuple[str, LogSource]]:
    """Select one log per attempt: the rank's, or the node's own.

    Without a node, it is that of the rank on its own node.
    """
    return [
        (key, source)
        for key, source in sources
        if source.rank == rank
        and (
            (node is None and rank is not None and not source.is_hosted)
            or (source.node == (node or 0) and (node is not None or rank is None))
        )
    ]
