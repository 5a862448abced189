"""Deletes uploaded code that no job has needed for a long time."""

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
"""Seconds between two rounds. A lower value reads the files of all jobs more often; a higher
value keeps code for longer."""


def delete_expired_code(uploads: Uploads, queries: Queries, journal: Journal) -> None:
    """Delete expired code, and mark the code that live jobs need as used."""
    workdirs = (journal.submission(job_id).spec.get("workdir") for job_id in queries.live_ids())
    uploads.delete_expired(str(workdir) for workdir in workdirs if is_upload(workdir))


async def run_code_retention(uploads: Uploads, queries: Queries, journal: Journal) -> None:
    """Delete expired code until cancelled.

    An error in one round does not stop the later ones.
    """
    while True:
        round_ = asyncio.create_task(
            asyncio.to_thread(delete_expired_code, uploads, queries, journal)
        )
        await asyncio.wait([round_])
        if isinstance(error := round_.exception(), StoreUnavailable | OSError):
            log.warning("expired uploaded code is not deleted: %s", error)
        elif error:
            log.error(
                "unexpected error in the deletion of uploaded code; next round in %g s",
                EVERY_S,
                exc_info=error,
            )
        await asyncio.sleep(EVERY_S)
