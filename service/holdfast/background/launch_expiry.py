"""Deletes old launch files of ended jobs.

They are on this machine, and in the shared directory of a Slurm cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from holdfast.errors import LauncherUnreachable, StoreUnavailable
from holdfast.ports import Clock, LaunchFileStore

log = logging.getLogger(__name__)

EVERY_S: Final = 3600.0
"""Seconds between two rounds. A lower value lists the directories of all launches more
often; a higher value keeps old files for longer."""


def expire(
    launcher: LaunchFileStore, ended_at: Callable[[str], datetime | None], until: datetime
) -> None:
    """Delete the launch files of jobs that ended before `until`.

    `ended_at` returns None for a job that has not ended or is unknown.
    """
    for key in launcher.keys_with_files():
        end = ended_at(key.rpartition("-")[0])
        if end is None or end >= until:
            continue
        try:
            launcher.discard(key)
        except (OSError, ValueError, LauncherUnreachable) as error:
            # A ValueError: the record may be of a newer version.
            log.warning("files of launch %s could not be deleted: %s", key, error)


async def run_launch_expiry(
    launchers: Iterable[tuple[object, timedelta]],
    ended_at: Callable[[str], datetime | None],
    clock: Clock,
) -> None:
    """Delete old files every hour until cancelled, with a retention time for each launcher."""
    stores = [(one, keep) for one, keep in launchers if isinstance(one, LaunchFileStore)]
    while stores:
        for store, keep in stores:
            round_ = asyncio.create_task(
                asyncio.to_thread(expire, store, ended_at, clock.now() - keep)
            )
            await asyncio.wait([round_])
            if isinstance(
                error := round_.exception(), OSError | StoreUnavailable | LauncherUnreachable
            ):
                log.warning("old launch files were not deleted: %s", error)
            elif error:
                log.error("unexpected error in the deletion of launch files", exc_info=error)
        await asyncio.sleep(EVERY_S)
