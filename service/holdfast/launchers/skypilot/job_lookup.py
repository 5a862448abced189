"""From a request to a job: which managed job a launch has become, or what there is to say while it has become none.

asked       SkyPilot queues what it is asked for, and its answer may be lost: waited for
a job       in a listing, or told by a request: taken for the launch's own from then on
failed      every request has come to an end without a job: asked for anew, or over where the task is to blame
stillborn   the job is there, and the request that made it has failed since: cancelled, and asked for anew
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.events import Outcome
from holdfast.domain.jobs.launch_admission import Admission, TokenState
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot import orphans
from holdfast.launchers.skypilot.admission import GateProbe
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.cached_reads import Listing, QueueCache
from holdfast.launchers.skypilot.launch_requests import (
    Failed,
    Fate,
    Launched,
    Pending,
    Requests,
    Unknown,
)
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.models import ManagedJob, ManagedJobStatus
from holdfast.launchers.skypilot.naming import Names
from holdfast.ports import Clock

AGAIN: Final = timedelta(seconds=60)
"""How long a launch request without an answer is waited for before it is sent again, where a gate lets one pass."""
QUARANTINE: Final = timedelta(seconds=300)
"""The same without a gate: what was sent must have come to an end by then."""
MAX_GENERATIONS: Final = 5
"""Tokens that one launch may use up in vain. Fewer: a server that restarts often fails jobs. More: a broken one is
asked for ever."""


class JobLookup:
    """Looks for the jobs of launches whose number is not known yet, and for what became of the requests for them."""

    def __init__(
        self,
        *,
        door: SkyPilotClient,
        listings: QueueCache,
        memory: LaunchStore,
        names: Names,
        probe: GateProbe,
        clock: Clock,
    ) -> None:
        self._door = door
        self._listings = listings
        self._memory = memory
        self._names = names
        self._probe = probe
        self._clock = clock
        self._requests = Requests(door)

    async def is_there(self, row: Admission) -> bool:
        """Whether SkyPilot has a job of a launch that it was not asked for, as far as is known here.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        # What an older state of the database has forgotten was there before this process was. Another token follows a
        # job that was cancelled, and an old listing may show that as it was.
        name = self._names.of(row.key)
        if row.generation == 1:
            return await self._listings.was_there(name)
        return bool((await self._listings.named(name)).named(name))

    async def find(self, row: Admission) -> Admission | Observation:
        """The launch with SkyPilot's number for it, or what is to be said while there is none.

        Raises:
            LauncherUnreachable: nothing was found out, or SkyPilot's server is in trouble.
        """
        if row.posted_at is None:
            return _never_asked(row, self._clock.now())
        listing = await self._listings.newest()
        # One from before may show the job of an older token, which was cancelled since.
        if listing.asked_at > row.posted_at and (found := self._in(listing, row)):
            return self._adopt(row, found)
        # Where a gate says that the token was not used, no other request can have made a job.
        is_unused = row.state is TokenState.ISSUED and await self._probe.is_sure()
        fate = await self._fate(row, is_unused=is_unused)
        if isinstance(fate, Launched):
            return self._adopt(row, fate.engine_id)
        if isinstance(fate, Pending):
            return Observation(standing=LaunchStatus.WAITING, since=row.posted_at)
        if not is_unused:  # Only a new listing proves that there is no job.
            listing = await self._listings.named(self._names.of(row.key))
            if found := self._in(listing, row):
                return self._adopt(row, found)
        return await self._without_job(row, fate, listing)

    async def never_started(self, row: Admission, job: ManagedJob) -> Observation | None:
        """What there is to say of a job that was made by a request which failed afterwards; None for any other.

        SkyPilot will never begin it, and never end it: it is cancelled, and once it is, the launch is asked for anew.

        Raises:
            LauncherUnreachable: nothing was found out, or SkyPilot's server is in trouble.
        """
        if row.cancelled_at or job.schedule_state != "INACTIVE":
            return None
        if job.status not in {ManagedJobStatus.PENDING, ManagedJobStatus.CANCELLED}:
            return None
        fate = await self._requests.status(row, job.name)
        # A server that was started anew has forgotten its requests, and does none of them.
        lost = isinstance(fate, Unknown) and self._clock.now() - row.state_at >= QUARANTINE
        if isinstance(fate, Launched) and fate.engine_id == row.engine_id:
            return None
        waiting = Observation(standing=LaunchStatus.WAITING, since=row.state_at)
        if not isinstance(fate, Failed) and not lost:
            # Cancelled by nobody here: another replica has seen it, and asked for the launch anew.
            return waiting if job.never_began else None
        if job.status is ManagedJobStatus.PENDING:
            await orphans.cancel(self._door, job.engine_id)
            return waiting
        now = self._clock.now()
        _let_rest(row, fate, now)
        return self._asked_anew(row, fate, now)

    async def _fate(self, row: Admission, *, is_unused: bool) -> Fate:
        assert row.posted_at
        is_recent = self._clock.now() - row.posted_at < AGAIN
        if row.request_id is None and is_recent and not row.cancelled_at:
            return (
                Pending()
            )  # The answer was lost; if SkyPilot has heard, it will be in a listing soon.
        is_alone = is_unused and row.request_id is not None
        return await self._requests.status(row, self._names.of(row.key), alone=is_alone)

    def _in(self, listing: Listing, row: Admission) -> int | None:
        """The number of the launch's job in a listing."""
        named = listing.named(self._names.of(row.key))
        return named[0].engine_id if named else None

    def _adopt(self, row: Admission, engine_id: int) -> Admission | Observation:
        passed_by = self._memory.assume_admitted(row.key, row.generation, self._clock.now())
        self._memory.found(row.key, row.generation, engine_id)
        known = self._memory.find(row.key)
        assert known, "rows of launches are never deleted"
        if known.generation != row.generation:  # Another replica has asked for it anew meanwhile.
            return Observation(standing=LaunchStatus.WAITING, since=known.state_at)
        was_asked = known.state is TokenState.CONSUMED and not passed_by
        self._probe.record_probe(known, was_asked=was_asked)
        return known

    async def _without_job(self, row: Admission, fate: Fate, listing: Listing) -> Observation:
        """SkyPilot was asked, has no request under way that is known here, and lists no such job."""
        now = self._clock.now()
        waiting = Observation(standing=LaunchStatus.WAITING, since=row.posted_at or now)
        if isinstance(fate, Failed) and fate.is_final and not row.cancelled_at:
            is_used = self._memory.revoke(row.key, now).state is TokenState.CONSUMED
            if is_used and row.state is not TokenState.CONSUMED:
                return waiting  # Another request has just passed the gate.
            return _failed(now, f"SkyPilot: {fate.detail}")
        if row.state is TokenState.REVOKED:
            return _never_began(row) if await self._is_dead(row, listing) else waiting
        _let_rest(row, fate, now)
        if row.state is TokenState.ISSUED:
            return Observation(standing=LaunchStatus.ABSENT, since=now)
        # Past the gate, and died before there was a job. That some request has failed does not prove it: another one,
        # whose answer was lost, may be the one that has passed.
        if now - row.state_at < QUARANTINE:
            return waiting
        return _never_began(row) if row.cancelled_at else self._asked_anew(row, fate, now)

    async def _is_dead(self, row: Admission, listing: Listing) -> bool:
        """Whether nothing can come any more of a launch whose token is revoked, and which `listing` lacks."""
        if listing.asked_at <= row.state_at:
            return False
        if await self._probe.is_sure():
            return True
        return row.posted_at is None or self._clock.now() - row.posted_at >= QUARANTINE

    def _asked_anew(self, row: Admission, fate: Fate, now: datetime) -> Observation:
        """What follows when a token was used up, and there is no job to show for it."""
        failed = fate if isinstance(fate, Failed) else None
        is_last = row.generation >= MAX_GENERATIONS and not (failed and failed.is_trouble)
        if is_last or (failed and failed.is_final):
            why = failed.detail if failed else "its server has forgotten the request"
            return _failed(now, f"SkyPilot could not begin the job: {why}")
        self._memory.renew(row.key, row.generation, now)
        return Observation(standing=LaunchStatus.ABSENT, since=now)


def _let_rest(row: Admission, fate: Fate, now: datetime) -> None:
    """Say what the trouble is for as long as it would be too soon to ask again.

    Raises:
        LauncherUnreachable: it is.
    """
    assert row.posted_at, "there is a request that has failed"
    if row.cancelled_at or now - row.posted_at >= QUARANTINE:
        return
    if isinstance(fate, Failed) and fate.is_trouble:
        raise LauncherUnreachable(f"SkyPilot is asked again in a while: {fate.detail}")


def _never_asked(row: Admission, now: datetime) -> Observation:
    if row.state is TokenState.REVOKED:
        return _never_began(row)
    return Observation(standing=LaunchStatus.ABSENT, since=now)


def _never_began(row: Admission) -> Observation:
    """The end of a launch whose token was revoked, or used up after somebody had cancelled it."""
    if row.cancelled_at is None:
        return _failed(row.state_at, "the launch was refused, and nobody is left who knows why")
    detail = "cancelled before it began"
    ending = LaunchResult(at=row.cancelled_at, outcome=Outcome.CANCELLED, detail=detail)
    return Observation(standing=LaunchStatus.ENDED, since=row.cancelled_at, ending=ending)


def _failed(at: datetime, detail: str) -> Observation:
    ending = LaunchResult(at=at, outcome=Outcome.FAILED, detail=detail)
    return Observation(standing=LaunchStatus.ENDED, since=at, ending=ending)
