"""The port, over a SkyPilot API server: a launch is submitted once, watched by its events, and proven to be over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from holdfast.domain.jobs.launch_admission import Admission, TokenState
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot import orphans, task_body
from holdfast.launchers.skypilot.admission import GateProbe
from holdfast.launchers.skypilot.api_client import SkyPilotClient, ahead
from holdfast.launchers.skypilot.cached_reads import EventCache, Listing, QueueCache
from holdfast.launchers.skypilot.engine_info import EngineInfoReader, check_version
from holdfast.launchers.skypilot.job_lookup import AGAIN, QUARANTINE, JobLookup
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.log_mirror import LogMirror
from holdfast.launchers.skypilot.models import ManagedJob
from holdfast.launchers.skypilot.naming import Names, cluster_of
from holdfast.launchers.skypilot.observe import (
    Price,
    is_behind,
    launched_at,
    listed,
    observe,
    place_of,
    settled,
    strip_ansi,
)
from holdfast.launchers.skypilot.placement_prices import SHORTEST_S, Prices
from holdfast.launchers.skypilot.responses import RequestFailed
from holdfast.launchers.skypilot.upload import upload
from holdfast.ports import Clock, EngineInfo, Launch, LogSource, OrphanedResource

CANCEL_AGAIN: Final = timedelta(seconds=30)
PRICED_AFTER: Final = timedelta(seconds=SHORTEST_S)
"""How long machines stand before they are reported, with their first moment. A lower value takes prices from catalogs that
SkyPilot's cost report knows better; a higher value lets limits of money trip later."""
TOLD_AFTER: Final = timedelta(minutes=15)
"""How long something may be left of a launch that is over before people are told: SkyPilot's time for taking it down, and
then ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkyPilotConfig:
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
        door: SkyPilotClient,
        memory: LaunchStore,
        names: Names,
        files: task_body.Files,
        wheelhouse: Callable[[], Path],
        nudge_url: Callable[[str], str | None],
        prices: Prices,
        clock: Clock,
        terms: SkyPilotConfig,
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
        self._listings = QueueCache(door, names, clock, terms.list_every_s)
        self._probe = GateProbe(door, memory, clock)
        self._search = JobLookup(
            door=door,
            listings=self._listings,
            memory=memory,
            names=names,
            probe=self._probe,
            clock=clock,
        )
        self._vitals = EngineInfoReader(door, self._probe, clock)
        self._chronicle = EventCache(door, memory)
        self._logs = LogMirror(door, self._chronicle, files.root / "logs", clock)
        self._strays = orphans.OrphanFinder(door, self._listings, memory, names, clock)
        self._cancelled_at: dict[str, datetime] = {}

    async def submit(self, launch: Launch) -> None:
        """Ask SkyPilot for a managed job, unless this launch was asked for or cancelled before.

        Raises:
            LaunchRefused: the task can never be started.
            LauncherUnreachable: nobody knows whether SkyPilot has it; look, then submit again.
        """
        try:
            with ahead():
                await self._submit(launch)
        except LaunchRefused as refusal:
            # Another replica may have sent the same token meanwhile, and not been refused.
            refused = self._memory.revoke(launch.key, self._clock.now())
            if refused.state is TokenState.CONSUMED:
                raise LauncherUnreachable(
                    f"SkyPilot has taken what is refused now; looking again ({refusal.detail})"
                ) from refusal
            raise

    async def look(self, key: str) -> Observation:
        """What stands under `key` now.

        Raises:
            LauncherUnreachable: nothing was seen, or nothing that can be understood.
        """
        row = self._memory.find(key)
        if row is None:
            return Observation(standing=LaunchStatus.ABSENT, since=self._clock.now())
        known = row if row.engine_id is not None else await self._search.find(row)
        if not isinstance(known, Observation):
            return await self._see(known)
        # Another token follows a request that may have made a job: what that ran on may stand.
        was_asked = row.posted_at is not None or row.generation > 1
        if was_asked and known.standing in {LaunchStatus.ABSENT, LaunchStatus.ENDED}:
            return await self._never_seen(row, known)
        return known

    async def cancel(self, key: str) -> None:
        """Ask for an end of `key`; what was never submitted will then never start.

        Raises:
            LauncherUnreachable: nobody knows whether SkyPilot has heard.
        """
        now = self._clock.now()
        row = self._memory.tombstone(key, key.rpartition("-")[0], now)
        asked_at = self._cancelled_at.get(key)
        if row.engine_id is None or (asked_at and now - asked_at < CANCEL_AGAIN):
            return
        with ahead():
            if await self._listed(row) is None:
                return  # The number may be another job's by now.
            await orphans.cancel(self._door, row.engine_id)
        self._cancelled_at[key] = now

    async def logs(self, key: str) -> Sequence[LogSource]:
        """What placements have printed, as far as it was copied while they stood, also where SkyPilot is away by now."""
        await self.keep_log(key)
        return await self._logs.sources(key)

    async def keep_log(self, key: str) -> None:
        """Copy what the newest placement has printed since the last copy; it goes with its nodes."""
        row = self._memory.find(key)
        # Under the number of a job that is not listed there may be another's log.
        if row and row.engine_id is not None and row.missing_since is None:
            await self._logs.refresh(key, row.engine_id)

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a log from `offset`; empty at its end."""
        return self._logs.read(key, source, offset, limit)

    def kept(self) -> Sequence[str]:
        """Keys of the launches whose logs were copied. Copies of code are removed by the sweep."""
        return self._logs.kept()

    def discard(self, key: str) -> None:
        """Remove the copied logs of a launch that is over."""
        self._logs.discard(key)

    @property
    def shares(self) -> str:
        """What jobs of users share in the clouds."""
        return "SkyPilot's credentials: the clouds, buckets and volumes that these open"

    @property
    def strangers(self) -> Sequence[OrphanedResource] | None:
        """Jobs and clusters that the newest sweep left alone; None before the first."""
        return self._strays.strangers

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        """Jobs and clusters of this service that no live launch owns, stopped; copies of files that none needs, removed.

        Raises:
            LauncherUnreachable: nothing was found out.
        """
        over = [key for key in self._files.kept() if self._memory.find(key) and not is_live(key)]
        await asyncio.to_thread(self._files.remove, over)
        return await self._strays.sweep(is_live)

    async def vitals(self) -> EngineInfo:
        """What SkyPilot's server says of itself now.

        Raises:
            LauncherUnreachable: it does not answer, or its gate lets nothing pass.
        """
        return await self._vitals.read()

    async def _submit(self, launch: Launch) -> None:
        now = self._clock.now()
        row = self._memory.open(launch.key, launch.job_id, now)
        if row.state is not TokenState.ISSUED or row.engine_id is not None or row.cancelled_at:
            return
        await check_version(self._door)
        self._hold_back()
        pause = AGAIN if await self._probe.is_sure() else QUARANTINE
        if row.posted_at and now - row.posted_at < pause:
            return  # What was sent may still arrive.
        if row.posted_at is None and await self._search.is_there(row):
            # Our memory is younger than the job: the database was put back to an older state.
            self._memory.posting(row, now - QUARANTINE)
            return
        body = await self._body(launch, self._memory.token(row))
        # From here on a crash leaves a launch that may have been asked for; the row says so before it can be true.
        if not self._memory.posting(row, self._clock.now()):
            return
        try:
            request_id = await self._door.launch(body)
        except RequestFailed as refusal:
            raise LaunchRefused(
                f"SkyPilot refuses the task: {strip_ansi(refusal.detail)}"
            ) from refusal
        self._memory.posted(launch.key, row.generation, request_id)

    async def _body(self, launch: Launch, token: str) -> dict[str, object]:
        name = self._names.of(launch.key)
        self._logs.begin(launch.key, launch.first_attempt)
        source = launch.task.get("workdir")
        task_body.check_mounts(launch)
        task = task_body.write(
            launch,
            name=name,
            token=token,
            nudge_url=self._nudge_url(launch.job_id),
            workdir=await asyncio.to_thread(
                self._files.workdir, launch.key, source, launch.folders
            ),
            wheelhouse=await asyncio.to_thread(self._wheelhouse),
        )
        if self._terms.shares_files:
            return task_body.body(task, name)
        folders = task_body.local_folders(task)
        asked = task_body.local_folders({"file_mounts": launch.task.get("file_mounts")})
        own = [folder for folder in folders if folder not in asked]
        blob = await upload(self._door, folders, launch.folders, own)
        mapping = {str(folder): str(folder) for folder in folders}
        sent = task_body.body({**task, "file_mounts_mapping": mapping}, name)
        return {**sent, "file_mounts_blob_id": blob}

    async def _see(self, row: Admission) -> Observation:
        assert row.engine_id is not None
        # First: under the number of a job that is not listed there may be the events of another.
        listing = await self._listings.newest()
        job = await self._listed(row)
        if job is None:
            return await self._forgotten(row)
        if row.lost:
            self._memory.lose(row.key, None)
        events = await self._chronicle.read(row.key, row.engine_id)
        # The listing may be older than what the events tell, and another replica's listing younger than this one.
        launched = launched_at(events)
        is_old = launched is not None and listing.asked_at <= launched
        if is_old or is_behind(job, events):
            await self._listings.fresh()
            job = await self._listed(row)
        if job is None:
            return await self._forgotten(row)
        if row.missing_since:
            self._memory.missing(row.key, None)
        if still := await self._search.never_started(row, job):
            return still
        now = self._clock.now()
        shown = settled(listed(events, job), now - PRICED_AFTER)
        nodes = job.nodes or 1
        cluster = cluster_of(self._names.of(row.key), row.engine_id)
        seen = observe(shown, job, nodes, Price(0, 0), now)
        if seen.placements:
            price = await self._prices.of(cluster, job, nodes, placements=seen.placements)
            seen = observe(shown, job, nodes, price, now, earlier=self._prices.told(cluster))
        return await self._proven(row, seen, job) if seen.ending else seen

    async def _listed(self, row: Admission) -> ManagedJob | None:
        """The job of a launch, whether it is over or not; None where SkyPilot has none."""
        assert row.engine_id is not None
        job = self._mine(row, await self._listings.newest())
        return job or await self._listings.numbered(row.engine_id, self._names.of(row.key))

    def _hold_back(self) -> None:
        """Go on unless SkyPilot has lost what may still run.

        Raises:
            LauncherUnreachable: it has, and nobody has given that up yet.
        """
        if undecided := self._memory.undecided():
            more = f" (and {len(undecided) - 1} more)" if len(undecided) > 1 else ""
            raise LauncherUnreachable(
                "SkyPilot has lost its records, so nothing is launched yet: "
                f"look after {undecided[0].lost}{more}; holdfast doctor lists all"
            )

    def _mine(self, row: Admission, listing: Listing) -> ManagedJob | None:
        assert row.engine_id is not None
        assert row.posted_at, "it was asked for"
        if listing.asked_at < row.posted_at:
            return None  # From before SkyPilot was asked: there it is the number of another job.
        job = listing.by_id.get(row.engine_id)
        return job if job and job.name == self._names.of(row.key) else None

    async def _forgotten(self, row: Admission) -> Observation:
        """SkyPilot knew this job once: two listings, some time apart, have to agree that it does not any more.

        What the job ran on may stand all the same. A sweep takes it down, and nothing follows before it is gone; but
        if it does not go, people are told, and what is lost is not waited for.
        """
        assert row.engine_id is not None
        now = self._clock.now()
        if row.missing_since is None:
            self._memory.missing(row.key, now)
        if row.missing_since is None or now - row.missing_since < orphans.FORGOTTEN_AFTER:
            raise LauncherUnreachable("SkyPilot does not list the job any more; looking again")
        left = await self._strays.of(self._names.of(row.key), row.engine_id)
        if left and now - row.missing_since < TOLD_AFTER:
            raise LauncherUnreachable(f"SkyPilot has lost the job; first goes {', '.join(left)}")
        lost = await self._unaccounted(row)
        if lost and row.cancelled_at is None:
            if lost != row.lost:
                self._memory.lose(row.key, lost)
            since = row.missing_since
            return Observation(standing=LaunchStatus.UNKNOWN, since=since, leftovers=(lost,))
        if row.lost and not lost:
            self._memory.lose(row.key, None)
        left = (*left, lost) if lost else left
        return Observation(standing=LaunchStatus.FORGOTTEN, since=row.missing_since, leftovers=left)

    async def _unaccounted(self, row: Admission) -> str:
        """What a job that is not listed may still run on; empty where SkyPilot's records of clusters account for it."""
        assert row.engine_id is not None
        cluster = cluster_of(self._names.of(row.key), row.engine_id)
        if await self._strays.knows(cluster):
            return ""
        launched = place_of(self._memory.told(row.key))
        if not launched and await self._listings.youngest() >= row.engine_id:
            return ""
        where = f" in {launched}" if launched else ""
        return (
            f"SkyPilot cluster {cluster}{where}, of which SkyPilot has lost its records: end it in the "
            f"cloud's console, then cancel the job, or pause and resume it"
        )

    async def _never_seen(self, row: Admission, seen: Observation) -> Observation:
        """What was seen of a launch that has no job, once nothing stands under its key, either: SkyPilot may have made a job, and
        lost it, but not what it ran on. A sweep takes that down."""
        left = await self._strays.clusters_of(row.key)
        ended_at = seen.ending.at if seen.ending else self._clock.now()
        if left and self._clock.now() - ended_at < TOLD_AFTER:
            raise LauncherUnreachable(f"SkyPilot has lost the job; first goes {', '.join(left)}")
        return replace(seen, leftovers=left)

    async def _proven(self, row: Admission, seen: Observation, job: ManagedJob) -> Observation:
        """The end, once listings show that nothing of the launch is left."""
        assert seen.ending
        assert row.engine_id is not None
        left = await self._strays.of(self._names.of(row.key), row.engine_id)
        if job.status.is_over and not left:
            return seen
        if not job.status.is_over or self._clock.now() - seen.ending.at < TOLD_AFTER:
            standing = (
                LaunchStatus.UP
                if seen.trail and not seen.trail[-1].lost_at
                else LaunchStatus.WAITING
            )
            return replace(seen, standing=standing, ending=None)
        return replace(seen, leftovers=left)
