"""Deletes the remains of removed jobs, and removes old jobs if their retention is limited.

Every step may be interrupted and repeated: a removal ends only after a round that found nothing left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from holdfast_worker.protocol.checkpoint_keys import COMMITS, INBOX

from holdfast.domain.access.audit import Actor
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import (
    CheckpointStoreRefused,
    CheckpointStoreUnreachable,
    LauncherUnreachable,
    NotFound,
    NotPossibleNow,
    StoreUnavailable,
)
from holdfast.ports import Clock, LaunchFileStore, OpenBucket
from holdfast.store.audit_log import AuditLog
from holdfast.store.billing.bills import BillRollups
from holdfast.store.job_removal import Removals, RemovedJob
from holdfast.store.journal import Journal

log = logging.getLogger(__name__)

EVERY_S: Final = 20.0
"""Seconds between two rounds. A lower value sends more requests to failing stores; a higher
value keeps files of removed jobs for longer."""
RETENTION_ROUNDS: Final = 180
"""Rounds between two searches for old jobs."""
FAILURE_DEADLINE: Final = timedelta(days=7)
"""Time for which a failing checkpoint store is retried. A lower value stops during a long
outage; a higher value keeps sending requests to a removed bucket."""
KEYS_PER_BATCH: Final = 500
RETENTION: Final = Actor(name="(retention)")
"""The actor in the audit log. No user can have this name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEraser:
    """Deletes rows and files of removed jobs."""

    removals: Removals
    journal: Journal
    launchers: Iterable[object]
    open_bucket: OpenBucket | None
    """None if there are no stores, as in a demonstration."""
    clock: Clock

    def erase_all(self) -> None:
        """Continue every removal."""
        for removal in self.removals.list_unfinished():
            try:
                problem = self._erase(removal)
            except (LauncherUnreachable, OSError, ValueError) as error:
                problem = str(error)
            if problem is not None and problem != removal.trouble:
                log.warning(
                    "files of removed job %s could not be deleted: %s", removal.job_id, problem
                )
                self.removals.record_result(removal.job_id, problem)

    def _erase(self, removal: RemovedJob) -> str | None:
        """The reason why files are left; None if none are, or if they are deleted soon."""
        self.removals.clear_measurements(removal.job_id)
        problem = self._discard_files(removal.job_id) or self._empty_store(removal)
        if problem:
            return problem
        if self.removals.clear_events(removal.job_id):
            self.removals.record_result(removal.job_id, None)
        return None

    def _discard_files(self, job_id: str) -> str | None:
        """The reason why files of launches are left; None if none are."""
        for launcher in self.launchers:
            if isinstance(launcher, LaunchFileStore):
                for key in _keys_of(job_id, launcher):
                    launcher.discard(key)
                if left := _keys_of(job_id, launcher):
                    return f"launch {left[0]} may still run"
        return None

    def _empty_store(self, removal: RemovedJob) -> str | None:
        """Delete objects and return why some are left; None without any, or after a week."""
        if removal.place is None or self.open_bucket is None:
            return None
        try:
            spec = JobSpec.from_stored(self.journal.submission(removal.job_id).spec)
        except NotFound:
            return None  # An earlier round has emptied the store.
        assert spec.holdfast.checkpoint, "a job with a place in a store has a store"
        try:
            bucket = self.open_bucket(spec.holdfast.checkpoint.store, removal.job_id, spec.envs)
            # A checkpoint without its commit does not exist, so none is read while its data is deleted.
            for directory in (COMMITS, "") if removal.with_checkpoints else (INBOX,):
                keys = [stored.key for stored in bucket.list_objects(directory).objects]
                for start in range(0, len(keys), KEYS_PER_BATCH):
                    bucket.delete(keys[start : start + KEYS_PER_BATCH])
        except (CheckpointStoreUnreachable, CheckpointStoreRefused) as error:
            if self.clock.now() - removal.removed_at < FAILURE_DEADLINE:
                return f"{removal.place}: {error.detail}"
            log.warning(
                "deletion of %s was abandoned after 7 days: %s", removal.place, error.detail
            )
        return None


def _keys_of(job_id: str, launcher: LaunchFileStore) -> list[str]:
    return [key for key in launcher.keys_with_files() if key.rpartition("-")[0] == job_id]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRetention:
    """Removes jobs that ended long ago, and old rows of the audit log."""

    removals: Removals
    bill_rollups: BillRollups
    clock: Clock
    keep_jobs_for: timedelta | None
    """Time after the end of a job; None: permanently."""
    audit: AuditLog
    keep_audit_for: timedelta | None
    """Time after a row of the audit log was written; None: permanently."""

    def remove_old(self) -> None:
        """Remove every job and audit row that is due, except jobs that may still run."""
        now = self.clock.now()
        if self.keep_audit_for is not None:
            self.audit.expire(now - self.keep_audit_for, RETENTION)
        if self.keep_jobs_for is None:
            return
        for job_id in self.removals.list_due(now - self.keep_jobs_for):
            try:
                self.removals.remove(
                    job_id,
                    lambda job: RETENTION.audit_action("job.remove", job.id),
                    self.bill_rollups,
                )
            except (NotPossibleNow, NotFound) as error:
                log.warning("an old job could not be removed: %s", error.detail)


async def run_job_retention(eraser: JobEraser, retention: JobRetention) -> None:
    """Run both until cancelled.

    An error in one round does not stop the later ones.
    """
    rounds = 0
    while True:
        steps = (
            [eraser.erase_all]
            if rounds % RETENTION_ROUNDS
            else [retention.remove_old, eraser.erase_all]
        )
        for step in steps:
            under_way = asyncio.create_task(asyncio.to_thread(step))
            await asyncio.wait([under_way])
            if isinstance(error := under_way.exception(), StoreUnavailable):
                log.warning("removed jobs are deleted later: %s", error.detail)
            elif error:
                log.error("unexpected error in the removal of jobs", exc_info=error)
        rounds += 1
        await asyncio.sleep(EVERY_S)
