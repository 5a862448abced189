"""Removal of what is left of removed jobs, and of old jobs where their time is limited.

Every step may be interrupted and repeated: a removal ends only once a round has found nothing left.
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
    DepotRefused,
    DepotUnreachable,
    LauncherUnreachable,
    NotFound,
    NotPossibleNow,
    StoreUnavailable,
)
from holdfast.ports import Clock, KeepsFiles, OpenDepot
from holdfast.store.audit_log import Audit
from holdfast.store.billing.bills import BillRollups
from holdfast.store.job_removal import Removals, RemovedJob
from holdfast.store.journal import Journal

log = logging.getLogger(__name__)

EVERY_S: Final = 20.0
"""Between two rounds. A lower value asks stores in trouble more often; a higher value keeps files of removed jobs for longer."""
OLD_EVERY: Final = 180
"""Rounds between two looks for old jobs."""
GIVE_UP: Final = timedelta(days=7)
"""Of trouble with a checkpoint store. A lower value gives up in a long outage; a higher value asks a removed bucket for longer."""
KEYS_AT_ONCE: Final = 500
RETENTION: Final = Actor(name="(retention)")
"""In the audit log. No user can have this name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEraser:
    """Removes rows and files of removed jobs."""

    removals: Removals
    journal: Journal
    launchers: Iterable[object]
    open_depot: OpenDepot | None
    """None: there are no stores, as in a demonstration."""
    clock: Clock

    def erase_all(self) -> None:
        """Continue every removal."""
        for removal in self.removals.unfinished():
            try:
                trouble = self._erase(removal)
            except (LauncherUnreachable, OSError, ValueError) as error:
                trouble = str(error)
            if trouble is not None and trouble != removal.trouble:
                log.warning("files of removed job %s are left: %s", removal.job_id, trouble)
                self.removals.note(removal.job_id, trouble)

    def _erase(self, removal: RemovedJob) -> str | None:
        """Why files are left; None where none are, or where they are gone before long."""
        self.removals.clear_measurements(removal.job_id)
        trouble = self._discard_files(removal.job_id) or self._empty_store(removal)
        if trouble:
            return trouble
        if self.removals.clear_events(removal.job_id):
            self.removals.note(removal.job_id, None)
        return None

    def _discard_files(self, job_id: str) -> str | None:
        """Why files of launches are left; None where none are."""
        for launcher in self.launchers:
            if isinstance(launcher, KeepsFiles):
                for key in _keys_of(job_id, launcher):
                    launcher.discard(key)
                if left := _keys_of(job_id, launcher):
                    return f"launch {left[0]} may still run"
        return None

    def _empty_store(self, removal: RemovedJob) -> str | None:
        """Why objects are left that should go; None where none are, or after a week of trouble."""
        if removal.place is None or self.open_depot is None:
            return None
        try:
            spec = JobSpec.stored(self.journal.submission(removal.job_id).spec)
        except NotFound:
            return None  # An earlier round was through with the store.
        assert spec.holdfast.checkpoint, "a place is in a store"
        try:
            depot = self.open_depot(spec.holdfast.checkpoint.store, removal.job_id, spec.envs)
            # Without its commit no checkpoint exists, so that none is read while its data goes.
            for directory in (COMMITS, "") if removal.with_checkpoints else (INBOX,):
                keys = [stored.key for stored in depot.look(directory).objects]
                for start in range(0, len(keys), KEYS_AT_ONCE):
                    depot.delete(keys[start : start + KEYS_AT_ONCE])
        except (DepotUnreachable, DepotRefused) as error:
            if self.clock.now() - removal.removed_at < GIVE_UP:
                return f"{removal.place}: {error.detail}"
            log.warning("%s is left as it is: %s", removal.place, error.detail)
        return None


def _keys_of(job_id: str, launcher: KeepsFiles) -> list[str]:
    return [key for key in launcher.kept() if key.rpartition("-")[0] == job_id]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRetention:
    """Removes jobs that ended long ago, and old rows of the audit log."""

    removals: Removals
    ledgers: BillRollups
    clock: Clock
    keep: timedelta | None
    """After the end of a job; None: for ever."""
    audit: Audit
    keep_audit: timedelta | None
    """After a row of the audit log was written; None: for ever."""

    def remove_old(self) -> None:
        """Remove every job and every row of the audit log that is due. Jobs of which something may still run stay."""
        now = self.clock.now()
        if self.keep_audit is not None:
            self.audit.expire(now - self.keep_audit, RETENTION)
        if self.keep is None:
            return
        for job_id in self.removals.due(now - self.keep):
            try:
                self.removals.remove(
                    job_id, lambda job: RETENTION.did("job.remove", job.id), self.ledgers
                )
            except (NotPossibleNow, NotFound) as error:
                log.warning("an old job is left: %s", error.detail)


async def remove_forever(eraser: JobEraser, retention: JobRetention) -> None:
    """Do both until cancelled. An error in one round stops none of the later ones."""
    rounds = 0
    while True:
        steps = (
            [eraser.erase_all] if rounds % OLD_EVERY else [retention.remove_old, eraser.erase_all]
        )
        for step in steps:
            under_way = asyncio.create_task(asyncio.to_thread(step))
            await asyncio.wait([under_way])
            if isinstance(error := under_way.exception(), StoreUnavailable):
                log.warning("removed jobs are cleared later: %s", error.detail)
            elif error:
                log.error("a bug in the removal of jobs", exc_info=error)
        rounds += 1
        await asyncio.sleep(EVERY_S)
