"""Logs of a job by attempt, node and rank: list, read in parts, follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from holdfast.api.auth.stream_access import TheStreamAccess, end_stream_on_outage
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routes.streams import POLL_S, LastEventId
from holdfast.api.routing import Router
from holdfast.api.schemas.jobs import LogChunk, LogOut
from holdfast.api.schemas.workers import MAX_COUNT
from holdfast.domain.jobfile.spec import launcher_name
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


@dataclass(frozen=True, slots=True)
class JobLog:
    """A log of one launch, at the launcher that ran it."""

    launcher: Launcher
    key: str
    """Key of the launch."""
    source: LogSource

    def read(self, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of it; blocking."""
        return self.launcher.read_log(self.key, self.source, offset, limit)


@router.get("", response_model=list[LogOut])
async def list_logs(job: TheJob, services: TheServices) -> list[LogOut]:
    """List the logs of a job."""
    return [
        LogOut(
            attempt=log.source.attempt,
            node=log.source.node,
            rank=log.source.rank,
            size_bytes=log.source.size_bytes,
        )
        for log in await job_logs(services, job)
    ]


@router.get("/text", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def read_log(
    job: TheJob,
    services: TheServices,
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
    found = _select(await job_logs(services, job), node, rank)
    if attempt is not None:
        found = [log for log in found if log.source.attempt == attempt]
    if not found:
        raise NotFound(
            f"job {job.id} has no such log; GET /v1/jobs/{job.id}/logs lists its logs, and the list is empty if the job never started"
        )
    piece = await asyncio.to_thread(found[-1].read, offset, limit)
    newest = str(found[-1].source.attempt)
    headers = {"X-Next-Offset": str(offset + len(piece)), "X-Attempt": newest}
    return Response(piece, media_type="text/plain; charset=utf-8", headers=headers)


def _require_launcher(job: TheJob, services: TheServices) -> None:
    """Refuse a stream before it begins if this service runs without the launcher of the job."""
    if job.engine not in services.launchers:
        name = launcher_name(job.engine)
        raise LauncherUnreachable(f"this service runs without the {name} launcher")


@router.get(
    "/stream", response_class=EventSourceResponse, dependencies=[Depends(_require_launcher)]
)
async def stream_log(
    job: TheJob,
    services: TheServices,
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
            for log in _select(await job_logs(services, job), node, rank):
                newest = log.source.attempt
                if newest < at or (attempt is not None and newest != attempt):
                    continue
                at, offset = newest, offset if newest == at else 0
                while piece := await asyncio.to_thread(_next_chunk, log, offset):
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


def _next_chunk(log: JobLog, offset: int) -> bytes:
    """Read the next chunk, cut after its last newline if possible.

    No character is split.
    """
    piece = log.read(offset, CHUNK_BYTES)
    end = piece.rfind(b"\n") + 1
    return piece[:end] if end else piece


async def job_logs(services: Services, job: Job) -> list[JobLog]:
    """List all logs of all launches, by attempt, node and rank.

    Raises:
        LauncherUnreachable: this service runs without the launcher of the job. Launches at an earlier one, which
            a resize has replaced, are left out instead.
    """
    job = await asyncio.to_thread(services.journal.read, job.id)
    _require_launcher(job, services)
    found = list[JobLog]()
    for launch in range(1, job.launch + 1):
        key, launcher = f"{job.id}-{launch}", services.launchers.get(job.engine_of_launch(launch))
        if launcher is not None:
            logs = await services.call_launcher(launcher.logs(key))
            found += [JobLog(launcher, key, source) for source in logs]
    return sorted(found, key=lambda log: log_sort_key(log.source))


def log_sort_key(source: LogSource) -> tuple[int, int, int]:
    """Sort by attempt, node and rank; -1 for the node's own output, which comes first."""
    return source.attempt, source.node, -1 if source.rank is None else source.rank


def _select(logs: Sequence[JobLog], node: int | None, rank: int | None) -> list[JobLog]:
    """Select one log per attempt: the rank's, or the node's own.

    Without a node, it is that of the rank on its own node.
    """
    return [
        log
        for log in logs
        if log.source.rank == rank
        and (
            (node is None and rank is not None and not log.source.is_hosted)
            or (log.source.node == (node or 0) and (node is not None or rank is None))
        )
    ]
