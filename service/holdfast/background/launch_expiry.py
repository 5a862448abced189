"""Expiry of the files that launches of ended jobs have left on this machine, and in the shared folder of a Slurm cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from holdfast.errors import LauncherUnreachable, StoreUnavailable
from holdfast.ports import Clock, KeepsFiles

log = logging.getLogger(__name__)

EVERY_S: Final = 3600.0
"""Between two looks. A lower value lists the folders of all launches more often; a higher value keeps old files for longer."""


def expire(
    launcher: KeepsFiles, ended_at: Callable[[str], datetime | None], until: datetime
) -> None:
    """Remove the files of jobs that ended before `until`. `ended_at` is None for a job that has not ended, or is unknown."""
    for key in launcher.kept():
        end = ended_at(key.rpartition("-")[0])
        if end is None or end >= until:
            continue
        try:
            launcher.discard(key)
        except (OSError, ValueError, LauncherUnreachable) as error:
            # A ValueError: the record may be of a newer version.
            log.warning("files of the launch %s could not be removed: %s", key, error)


async def expire_forever(
    launchers: Iterable[tuple[object, timedelta]],
    ended_at: Callable[[str], datetime | None],
    clock: Clock,
) -> None:
    """Expire old files every hour until cancelled, those of each launcher after a time of its own."""
    keepers = [(one, keep) for one, keep in launchers if isinstance(one, KeepsFiles)]
    while keepers:
        for keeper, keep in keepers:
            look = asyncio.create_task(
                asyncio.to_thread(expire, keeper, ended_at, clock.now() - keep)
            )
            await asyncio.wait([look])
            if isinstance(
                error := look.exception(), OSError | StoreUnavailable | LauncherUnreachable
            ):
                log.warning("old files of launches were not looked for: %s", error)
            elif error:
                log.error("a bug in the expiry of files", exc_info=error)
        await asyncio.sleep(EVERY_S)
