"""Finds the managed job of a launch request, and observes the launch until there is one.

requested      SkyPilot queues the request, and its response may be lost: wait
job            found in a listing or in a request's result: adopted as the launch's job
failed         all requests ended without a job: request again, or fail if the task is at fault
never started  the job exists, but its request has failed since: cancel it, and request again
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
    Launched,
    LaunchRequests,
    Pending,
    RequestStatus,
    Unknown,
)
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.models import ManagedJob, ManagedJobStatus
from holdfast.launchers.skypilot.naming import JobNames
from holdfast.ports import Clock

RETRY_AFTER: Final = timedelta(seconds=60)
"""Seconds until a launch request without a response is repeated, if a gate admits only one."""
QUARANTINE: Final = timedelta(seconds=300)
"""How long without a gate: a sent request must have ended by then."""
MAX_GENERATIONS: Final = 5
"""Tokens that one launch may use up without a job.
With fewer, a server that restarts often fails jobs; with more, a broken server is retried for long."""


class JobLookup:
    """Finds the jobs of launches whose number is unknown, and the status of their requests."""

    def __init__(
        self,
        *,
        door: SkyPilotClient,
        listings: QueueCache,
        memory: LaunchStore,
        names: JobNames,
        probe: GateProbe,
        clock: Clock,
    ) -> None:
        self._client = door
        self._listings = listings
        self._store = memory
        self._names = names
        self._probe = probe
        self._clock = clock
        self._requests = LaunchRequests(door)

    async def exists(self, row: Admission) -> bool:
        """Whether SkyPilot has a job of a launch that the database does not show as requested.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        # A job that a restored database has forgotten existed before this process. A new token follows a cancelled job,
        # which an old listing may still show as active.
        name = self._names.job_name(row.key)
        if row.generation == 1:
            return await self._listings.existed_at_start(name)
        return bool((await self._listings.find_by_name(name)).jobs_named(name))

    async def find(self, row: Admission) -> Admission | Observation:
        """Return the launch with its job number, or the observation while there is none.

        Raises:
            LauncherUnreachable: the result is unknown, or SkyPilot's server has a problem.
        """
        if row.posted_at is None:
            return _not_submitted(row, self._clock.now())
        listing = await self._listings.newest()
        # An older listing may show the job of a previous token, which has been cancelled since.
        if listing.requested_at > row.posted_at and (found := self._find_in(listing, row)):
            return self._adopt(row, found)
        # If the gate proves the token unused, no other request can have created a job.
        is_unused = row.state is TokenState.ISSUED and await self._probe.is_exactly_once()
        status = await self._request_status(row, is_unused=is_unused)
        if isinstance(status, Launched):
            return self._adopt(row, status.engine_id)
        if isinstance(status, Pending):
            return Observation(status=LaunchStatus.WAITING, since=row.posted_at)
        if not is_unused:  # Only a newer listing proves that there is no job.
            listing = await self._listings.find_by_name(self._names.job_name(row.key))
            if found := self._find_in(listing, row):
                return self._adopt(row, found)
        return await self._without_job(row, status, listing)

    async def never_started(self, row: Admission, job: ManagedJob) -> Observation | None:
        """Observe a job whose request failed after creating it; None for any other job.

        SkyPilot will neither start nor end such a job. It is cancelled, and the launch is then requested again.

        Raises:
            LauncherUnreachable: the result is unknown, or SkyPilot's server has a problem.
        """
        if row.cancelled_at or job.schedule_state != "INACTIVE":
            return None
        if job.status not in {ManagedJobStatus.PENDING, ManagedJobStatus.CANCELLED}:
            return None
        status = await self._requests.status(row, job.name)
        # A restarted server has forgotten its requests and executes none of them.
        lost = isinstance(status, Unknown) and self._clock.now() - row.state_at >= QUARANTINE
        if isinstance(status, Launched) and status.engine_id == row.engine_id:
            return None
        waiting = Observation(status=LaunchStatus.WAITING, since=row.state_at)
        if not isinstance(status, Failed) and not lost:
            # Not cancelled by this process: another replica has handled it and requested the launch again.
            return waiting if job.never_started else None
        if job.status is ManagedJobStatus.PENDING:
            await orphans.cancel(self._client, job.engine_id)
            return waiting
        now = self._clock.now()
        _check_backoff(row, status, now)
        return self._retry_or_fail(row, status, now)

    async def _request_status(self, row: Admission, *, is_unused: bool) -> RequestStatus:
        assert row.posted_at
        is_recent = self._clock.now() - row.posted_at < RETRY_AFTER
        if row.request_id is None and is_recent and not row.cancelled_at:
            return (
                Pending()
            )  # The response was lost; if SkyPilot received the request, it will soon be listed.
        is_alone = is_unused and row.request_id is not None
        return await self._requests.status(row, self._names.job_name(row.key), alone=is_alone)

    def _find_in(self, listing: Listing, row: Admission) -> int | None:
        """Return the job number of the launch in a listing."""
        named = listing.jobs_named(self._names.job_name(row.key))
        return named[0].engine_id if named else None

    def _adopt(self, row: Admission, engine_id: int) -> Admission | Observation:
        passed_by = self._store.assume_admitted(row.key, row.generation, self._clock.now())
        self._store.record_engine_id(row.key, row.generation, engine_id)
        known = self._store.find(row.key)
        assert known, "rows of launches are kept"
        if (
            known.generation != row.generation
        ):  # Another replica has requested it again in the meantime.
            return Observation(status=LaunchStatus.WAITING, since=known.state_at)
        was_asked = known.state is TokenState.CONSUMED and not passed_by
        self._probe.record_probe(known, was_asked=was_asked)
        return known

    async def _without_job(
        self, row: Admission, status: RequestStatus, listing: Listing
    ) -> Observation:
        """Observe a launch that was requested but has no known pending request and no listed job."""
        now = self._clock.now()
        waiting = Observation(status=LaunchStatus.WAITING, since=row.posted_at or now)
        if isinstance(status, Failed) and status.is_final and not row.cancelled_at:
            is_used = self._store.revoke(row.key, now).state is TokenState.CONSUMED
            if is_used and row.state is not TokenState.CONSUMED:
                return waiting  # Another request has just passed the gate.
            return _failed(now, f"SkyPilot: {status.detail}")
        if row.state is TokenState.REVOKED:
            return _never_started(row) if await self._is_dead(row, listing) else waiting
        _check_backoff(row, status, now)
        if row.state is TokenState.ISSUED:
            return Observation(status=LaunchStatus.ABSENT, since=now)
        # The token passed the gate, and no job followed. A failed request does not prove that, because another request,
        # whose response was lost, may have passed.
        if now - row.state_at < QUARANTINE:
            return waiting
        return _never_started(row) if row.cancelled_at else self._retry_or_fail(row, status, now)

    async def _is_dead(self, row: Admission, listing: Listing) -> bool:
        """Whether a launch with a revoked token, missing in `listing`, can no longer become a job."""
        if listing.requested_at <= row.state_at:
            return False
        if await self._probe.is_exactly_once():
            return True
        return row.posted_at is None or self._clock.now() - row.posted_at >= QUARANTINE

    def _retry_or_fail(self, row: Admission, status: RequestStatus, now: datetime) -> Observation:
        """Return the observation after a token was used up without a job."""
        failed = status if isinstance(status, Failed) else None
        is_last = row.generation >= MAX_GENERATIONS and not (failed and failed.is_server_error)
        if is_last or (failed and failed.is_final):
            why = failed.detail if failed else "its server no longer knows the request"
            return _failed(now, f"SkyPilot could not start the job: {why}")
        self._store.renew(row.key, row.generation, now)
        return Observation(status=LaunchStatus.ABSENT, since=now)


def _check_backoff(row: Admission, status: RequestStatus, now: datetime) -> None:
    """Raise the server's error while it is too early to repeat the request.

    Raises:
        LauncherUnreachable: it is too early.
    """
    assert row.posted_at, "a failed request was posted"
    if row.cancelled_at or now - row.posted_at >= QUARANTINE:
        return
    if isinstance(status, Failed) and status.is_server_error:
        raise LauncherUnreachable(f"the launch request failed and will be retried: {status.detail}")


def _not_submitted(row: Admission, now: datetime) -> Observation:
    if row.state is TokenState.REVOKED:
        return _never_started(row)
    return Observation(status=LaunchStatus.ABSENT, since=now)


def _never_started(row: Admission) -> Observation:
    """Return the end of a launch whose token was revoked, or used up after a cancel."""
    if row.cancelled_at is None:
        return _failed(row.state_at, "the launch was refused for an unknown reason")
    detail = "cancelled before it began"
    ending = LaunchResult(at=row.cancelled_at, outcome=Outcome.CANCELLED, detail=detail)
    return Observation(status=LaunchStatus.ENDED, since=row.cancelled_at, result=ending)


def _failed(at: datetime, detail: str) -> Observation:
    ending = LaunchResult(at=at, outcome=Outcome.FAILED, detail=detail)
    return Observation(status=LaunchStatus.ENDED, since=at, result=ending)
