"""The beginnings and ends of the logs of an attempt, for whoever looks for signs in them."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.api.logs import sources
from holdfast.api.services import Services
from holdfast.domain.hints import Printed
from holdfast.domain.job import Job
from holdfast.domain.spec import JobSpec
from holdfast.errors import LauncherUnreachable
from holdfast.ports import Launcher, LogSource

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
