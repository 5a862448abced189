"""The port, over a SkyPilot API server: a launch is submitted once, watched by its events, and proven to be over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from holdfast.adapters.skypilot import order, strays
from holdfast.adapters.skypilot.door import Door, RequestFailed
from holdfast.adapters.skypilot.guarantee import GateProbe, Guarantee
from holdfast.adapters.skypilot.listing import Listing, Listings
from holdfast.adapters.skypilot.logs import LogMirror
from holdfast.adapters.skypilot.memory import Memory
from holdfast.adapters.skypilot.naming import Names, cluster_of
from holdfast.adapters.skypilot.prices import Prices
from holdfast.adapters.skypilot.requests import (
    Failed,
    Fate,
    Launched,
    Pending,
    Requests,
    Unknown,
)
from holdfast.adapters.skypilot.rows import Row, Status, read_events
from holdfast.adapters.skypilot.story import Price, is_behind, listed, placements_in, plain, tell
from holdfast.adapters.skypilot.upload import upload
from holdfast.adapters.skypilot.version import check_version
from holdfast.adapters.skypilot.vitals import VitalSigns
from holdfast.domain.admission import Admission, EngineEvent, TokenState
from holdfast.domain.events import Outcome
from holdfast.domain.sighting import Ending, Sighting, Standing
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.ports import Clock, Launch, LogSource, Stray, Vitals

AGAIN: Final = timedelta(seconds=60)
"""How long a launch request without an answer is waited for before it is sent again, where a gate lets one pass."""
QUARANTINE: Final = timedelta(seconds=300)
"""The same without a gate: what was sent must have come to an end by then."""
FORGOTTEN_AFTER: Final = timedelta(seconds=60)
"""Between the first listing that lacks a known job and the one that makes it forgotten."""
CANCEL_AGAIN: Final = timedelta(seconds=30)
TEARDOWN: Final = timedelta(minutes=15)
"""How long SkyPilot may take over removing nodes of a job that has ended, before somebody is told."""
MAX_GENERATIONS: Final = 5
"""Tokens that one launch may use up in vain. Fewer: a server that restarts often fails jobs. More: a broken one is
asked for ever."""
PAGE: Final = 100
"""Events in one reading. Smaller misses events between two looks at a job that fails over often; bigger costs time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """How this service and its SkyPilot server stand to each other."""

    shares_files: bool
    """Whether the server sees the files of this machine under the same paths."""
    list_every_s: float = 30.0
    """How old a listing may be. A smaller number costs SkyPilot's server seconds of work each time."""


class SkyPilotLauncher:
    """Launches of one service at one SkyPilot API server."""

    saves_on_cancel = False
    """SkyPilot's cancel takes the nodes at once; who wants the work saved asks the worker first."""

    def __init__(
        self,
        *,
        door: Door,
        memory: Memory,
        names: Names,
        files: order.Files,
        wheelhouse: Callable[[], Path],
        nudge_url: Callable[[str], str | None],
        prices: Prices,
        clock: Clock,
        terms: Terms,
    ) -> None:
        self._door = door
        self._memory = memory
        self._names = names
        self._files = files
        self._wheelhouse = wheelhouse
        self._nudge_url = nudge_url
        self._prices = prices
        self._clock = clock
        self._terms = terms
        self._listings = Listings(door, names, clock, terms.list_every_s)
        self._requests = Requests(door)
        self._probe = GateProbe(door, memory, clock)
        self._vitals = VitalSigns(door, self._probe, clock)
        self._logs = LogMirror(door, files.root / "logs")
        self._strays = strays.Strays(door, self._listings, memory, names, clock)
        self._cancelled_at: dict[str, datetime] = {}

    async def submit(self, launch: Launch) -> None:
        """Ask SkyPilot for a managed job, unless this launch was asked for or cancelled before.

        Raises:
            LaunchRefused: the task can never be started.
            LauncherUnreachable: nobody knows whether SkyPilot has it; look, then submit again.
        """
        now = self._clock.now()
        row = self._memory.open(launch.key, launch.job_id, now)
        if row.state is not TokenState.ISSUED or row.engine_id is not None or row.cancelled_at:
            return
        await check_version(self._door)
        pause = AGAIN if await self._is_gated() else QUARANTINE
        if row.posted_at and now - row.posted_at < pause:
            return  # What was sent may still arrive.
        # Any listing will do: what an older state of the database has forgotten was there before this process was.
        if row.posted_at is None and (await self._listings.any()).named(self._names.of(launch.key)):
            # Our memory is younger than the job: the database was put back to an older state.
            self._memory.posting(row, now - QUARANTINE)
            return
        body = await self._body(launch, self._memory.token(row))
        # From here on a crash leaves a launch that may have been asked for; the row says so before it can be true.
        if not self._memory.posting(row, self._clock.now()):
            return
        try:
            request_id = await self._door.ask("/jobs/launch", body)
        except RequestFailed as refusal:
            if row.posted_at:  # An earlier request may still be on its way.
                buried = self._memory.entomb(launch.key, launch.job_id, self._clock.now())
                if buried.state is TokenState.CONSUMED:
                    raise LauncherUnreachable(
                        "SkyPilot refuses a task that it has taken before; looking again"
                    ) from refusal
            raise LaunchRefused(f"SkyPilot refuses the task: {plain(refusal.detail)}") from refusal
        self._memory.posted(launch.key, row.generation, request_id)

    async def look(self, key: str) -> Sighting:
        """What stands under `key` now.

        Raises:
            LauncherUnreachable: nothing was seen, or nothing that can be understood.
        """
        row = self._memory.find(key)
        if row is None:
            return Sighting(standing=Standing.ABSENT, since=self._clock.now())
        known = row if row.engine_id is not None else await self._seek(row)
        return known if isinstance(known, Sighting) else await self._see(known)

    async def cancel(self, key: str) -> None:
        """Ask for an end of `key`; what was never submitted will then never start.

        Raises:
            LauncherUnreachable: nobody knows whether SkyPilot has heard.
        """
        now = self._clock.now()
        row = self._memory.entomb(key, key.rpartition("-")[0], now)
        asked_at = self._cancelled_at.get(key)
        if row.engine_id is None or (asked_at and now - asked_at < CANCEL_AGAIN):
            return
        await strays.cancel(self._door, row.engine_id)
        self._cancelled_at[key] = now

    async def logs(self, key: str) -> Sequence[LogSource]:
        """What the newest placements have printed, as far as it was fetched while they stood.

        Raises:
            LauncherUnreachable: SkyPilot does not answer.
        """
        row = self._memory.find(key)
        if row is None or row.engine_id is None:
            return ()
        return await self._logs.refresh(key, row.engine_id, await self._see(row))

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a log from `offset`; empty at its end."""
        return self._logs.read(key, source, offset, limit)

    async def sweep(self, is_live: Callable[[str], bool]) -> Sequence[Stray]:
        """Jobs and clusters of this service that no live launch owns, stopped.

        Raises:
            LauncherUnreachable: nothing was found out.
        """
        return await self._strays.sweep(is_live)

    async def vitals(self) -> Vitals:
        """What SkyPilot's server says of itself now.

        Raises:
            LauncherUnreachable: it does not answer, or its gate lets nothing pass.
        """
        return await self._vitals.read()

    async def _body(self, launch: Launch, token: str) -> dict[str, object]:
        name = self._names.of(launch.key)
        self._logs.begin(launch.key, launch.first_attempt)
        source = launch.task.get("workdir")
        task = order.write(
            launch,
            name=name,
            token=token,
            nudge_url=self._nudge_url(launch.job_id),
            workdir=await asyncio.to_thread(self._files.workdir, launch.key, source),
            wheelhouse=await asyncio.to_thread(self._wheelhouse),
        )
        if self._terms.shares_files:
            return order.body(task, name)
        folders = order.local_folders(task)
        blob = await upload(self._door, folders)
        mapping = {str(folder): str(folder) for folder in folders}
        sent = order.body({**task, "file_mounts_mapping": mapping}, name)
        return {**sent, "file_mounts_blob_id": blob}

    async def _seek(self, row: Admission) -> Admission | Sighting:
        """The launch with SkyPilot's number for it, or what is to be said while there is none."""
        now, name = self._clock.now(), self._names.of(row.key)
        if row.posted_at is None:
            return _never_asked(row, now)
        listing = await self._listings.newest()
        if named := listing.named(name):
            return self._adopt(row, named[0].engine_id)
        waiting = Sighting(standing=Standing.WAITING, since=row.posted_at)
        if row.request_id is None and not row.cancelled_at and now - row.posted_at < AGAIN:
            return (
                waiting  # The answer was lost; if SkyPilot has heard, it will be in a listing soon.
            )
        # Where a gate says that the token was not used, no other request can have made a job.
        is_unused = row.state is TokenState.ISSUED and await self._is_gated()
        fate = await self._requests.fate(row, name, alone=is_unused and row.request_id is not None)
        if isinstance(fate, Launched):
            return self._adopt(row, fate.engine_id)
        if isinstance(fate, Pending):
            return waiting
        return await self._sought_in_vain(row, fate, listing if is_unused else None)

    async def _sought_in_vain(
        self, row: Admission, fate: Fate, listing: Listing | None
    ) -> Admission | Sighting:
        """The same where no request is known to have made a job; `listing` None where only a new one proves it."""
        listing = listing or await self._listings.fresh()
        if named := listing.named(self._names.of(row.key)):
            return self._adopt(row, named[0].engine_id)
        return await self._without_job(row, fate, listing)

    async def _is_gated(self) -> bool:
        return await self._probe.guarantee() is Guarantee.EXACTLY_ONCE

    def _adopt(self, row: Admission, engine_id: int) -> Admission:
        self._memory.assume_admitted(row.key, row.generation, self._clock.now())
        self._memory.found(row.key, engine_id)
        known = self._memory.find(row.key)
        assert known, "rows of launches are never deleted"
        return known

    async def _without_job(self, row: Admission, fate: Fate, listing: Listing) -> Sighting:
        """SkyPilot was asked, has no request under way that is known here, and lists no such job."""
        now = self._clock.now()
        absent = Sighting(standing=Standing.ABSENT, since=now)
        waiting = Sighting(standing=Standing.WAITING, since=row.posted_at or now)
        if row.state is TokenState.REVOKED:
            assert row.cancelled_at, "tokens are revoked by cancels alone"
            # The listing was asked for after the token was revoked: nothing is there, and nothing can come.
            return _cancelled(row.cancelled_at) if await self._is_dead(row, listing) else waiting
        if isinstance(fate, Failed) and (fate.is_final or row.generation >= MAX_GENERATIONS):
            buried = self._memory.entomb(row.key, row.job_id, now)
            if buried.state is not row.state and buried.state is TokenState.CONSUMED:
                return waiting  # Another request has just passed the gate.
            ending = Ending(at=now, outcome=Outcome.FAILED, detail=f"SkyPilot: {fate.detail}")
            return Sighting(standing=Standing.ENDED, since=now, ending=ending)
        if row.state is TokenState.CONSUMED:
            # Past the gate, and died before there was a job. That some request has failed does not prove it: another
            # one, whose answer was lost, may be the one that has passed.
            if now - row.state_at < QUARANTINE:
                return waiting
            if row.cancelled_at:
                return _cancelled(row.cancelled_at)
            self._memory.renew(row.key, row.generation, now)
        return absent

    async def _is_dead(self, row: Admission, listing: Listing) -> bool:
        """Whether nothing can come any more of a launch whose token is revoked, and which `listing` lacks."""
        if listing.asked_at <= row.state_at:
            return False
        if await self._is_gated():
            return True
        return row.posted_at is None or self._clock.now() - row.posted_at >= QUARANTINE

    async def _see(self, row: Admission) -> Sighting:
        assert row.engine_id is not None
        events = await self._events(row.key, row.engine_id)
        job = self._mine(row, await self._listings.newest())
        # The listing may be older than what the events tell, and another replica's listing younger than this one.
        if job is None or is_behind(job, events):
            job = self._mine(row, await self._listings.fresh())
        if job is None:
            return self._forgotten(row)
        if row.missing_since:
            self._memory.missing(row.key, None)
        if still := await self._stillborn(row, job):
            return still
        shown = listed(events, job)
        price = Price(0, 0)
        nodes = job.nodes or 1
        cluster = cluster_of(self._names.of(row.key), row.engine_id)
        if any(event.status == Status.RUNNING for event in shown):
            price = await self._prices.of(cluster, job, nodes, placements=placements_in(shown))
        earlier = self._prices.told(cluster)
        seen = tell(shown, job, nodes, price, self._clock.now(), earlier=earlier)
        return await self._proven(row, seen, job) if seen.ending else seen

    def _mine(self, row: Admission, listing: Listing) -> Row | None:
        assert row.engine_id is not None
        job = listing.by_id.get(row.engine_id)
        return job if job and job.name == self._names.of(row.key) else None

    async def _events(self, key: str, engine_id: int) -> tuple[EngineEvent, ...]:
        wanted = {"job_id": engine_id, "limit": PAGE, "include_cluster_events": True}
        told = read_events(await self._door.read("/jobs/events", wanted))
        if len(told) >= PAGE:
            told = read_events(await self._door.read("/jobs/events", {**wanted, "limit": None}))
        return self._memory.copy(key, told)

    def _forgotten(self, row: Admission) -> Sighting:
        """SkyPilot knew this job once: two listings, some time apart, have to agree that it does not any more."""
        now = self._clock.now()
        if row.missing_since is None:
            self._memory.missing(row.key, now)
        if row.missing_since is None or now - row.missing_since < FORGOTTEN_AFTER:
            raise LauncherUnreachable("SkyPilot does not list the job any more; looking again")
        return Sighting(standing=Standing.FORGOTTEN, since=row.missing_since)

    async def _stillborn(self, row: Admission, job: Row) -> Sighting | None:
        """A job that was made by a request which failed afterwards: SkyPilot will never begin it, and never end it.

        It is cancelled, and once it is, the launch is asked for anew.
        """
        if row.cancelled_at or job.schedule_state != "INACTIVE":
            return None
        if job.status not in {Status.PENDING, Status.CANCELLED}:
            return None
        fate = await self._requests.fate(row, job.name)
        now = self._clock.now()
        # A server that was started anew has forgotten its requests, and does none of them.
        lost = isinstance(fate, Unknown) and now - row.state_at >= QUARANTINE
        if isinstance(fate, Launched) and fate.engine_id == row.engine_id:
            return None
        if not isinstance(fate, Failed) and not lost:
            # Cancelled by nobody here: another replica has seen it, and asked for the launch anew.
            anew = Sighting(standing=Standing.WAITING, since=row.state_at)
            return anew if job.never_began else None
        if job.status is Status.PENDING:
            await strays.cancel(self._door, job.engine_id)
            return Sighting(standing=Standing.WAITING, since=row.state_at)
        return self._ask_anew(row, fate, now)

    def _ask_anew(self, row: Admission, fate: Fate, now: datetime) -> Sighting:
        """What follows when a job is over that never began."""
        why = fate.detail if isinstance(fate, Failed) else "its server has forgotten the request"
        is_final = isinstance(fate, Failed) and fate.is_final
        if is_final or row.generation >= MAX_GENERATIONS:
            detail = f"SkyPilot could not begin the job: {why}"
            ending = Ending(at=now, outcome=Outcome.FAILED, detail=detail)
            return Sighting(standing=Standing.ENDED, since=now, ending=ending)
        self._memory.renew(row.key, row.generation, now)
        return Sighting(standing=Standing.ABSENT, since=now)

    async def _proven(self, row: Admission, seen: Sighting, job: Row) -> Sighting:
        """The end, once listings show that nothing of the launch is left."""
        assert seen.ending
        assert row.engine_id is not None
        left = await self._strays.of(self._names.of(row.key), row.engine_id)
        if job.status.is_over and not left:
            return seen
        if not job.status.is_over or self._clock.now() - seen.ending.at < TEARDOWN:
            standing = (
                Standing.UP if seen.trail and not seen.trail[-1].lost_at else Standing.WAITING
            )
            return replace(seen, standing=standing, ending=None)
        return replace(seen, ending=replace(seen.ending, leftover=left))


def _never_asked(row: Admission, now: datetime) -> Sighting:
    if row.state is TokenState.REVOKED:
        return _cancelled(row.cancelled_at or now)
    return Sighting(standing=Standing.ABSENT, since=now)


def _cancelled(at: datetime) -> Sighting:
    ending = Ending(at=at, outcome=Outcome.CANCELLED, detail="cancelled before it began")
    return Sighting(standing=Standing.ENDED, since=at, ending=ending)
