"""Removal of uploaded code that no job has needed for long."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.code_upload.upload_store import Uploads, is_upload
from holdfast.errors import StoreUnavailable
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries

log = logging.getLogger(__name__)

EVERY_S: Final = 3600.0
"""Between two rounds. A lower value reads the files of all jobs more often; a higher value keeps code for longer."""


def tidy_code(uploads: Uploads, reading: Queries, journal: Journal) -> None:
    """Remove what is too old, and note which code jobs that have not ended need."""
    workdirs = (journal.submission(job_id).spec.get("workdir") for job_id in reading.live_ids())
    uploads.tidy(str(workdir) for workdir in workdirs if is_upload(workdir))


async def keep_code(uploads: Uploads, reading: Queries, journal: Journal) -> None:
    """Do so until cancelled. An error in one round stops none of the later ones."""
    while True:
        round_ = asyncio.create_task(asyncio.to_thread(tidy_code, uploads, reading, journal))
        await asyncio.wait([round_])
        if isinstance(error := round_.exception(), StoreUnavailable | OSError):
            log.warning("uploaded code is not tidied: %s", error)
        elif error:
            log.error(
                "a bug in tidying uploaded code; the next round is in %g s",
                EVERY_S,
                exc_info=error,
            )
        await asyncio.sleep(EVERY_S)
