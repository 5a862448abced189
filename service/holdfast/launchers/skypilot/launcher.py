"""The SkyPilot launcher: submits each launch once, observes its events, verifies its end."""

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
from holdfast.launchers.skypilot.api_client import SkyPilotClient, priority
from holdfast.launchers.skypilot.cached_reads import EventCache, Listing, QueueCache
from holdfast.launchers.skypilot.engine_info import EngineInfoReader, check_version
from holdfast.launchers.skypilot.job_lookup import QUARANTINE, RETRY_AFTER, JobLookup
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.log_mirror import LogMirror
from holdfast.launchers.skypilot.models import ManagedJob
from holdfast.launchers.skypilot.naming import JobNames, cluster_of, job_of, launch_key
from holdfast.launchers.skypilot.observe import (
    PlacementPrice,
    is_behind,
    launched_at,
    listed_events,
    newest_location,
    observe,
    priced_events,
    strip_ansi,
    unsettled_since,
)
from holdfast.launchers.skypilot.placement_prices import MIN_DURATION_S, PlacementPrices
from holdfast.launchers.skypilot.responses import RequestFailed
from holdfast.launchers.skypilot.upload import upload
from holdfast.ports import AvoidedNode, Clock, EngineInfo, Launch, LogSource, OrphanedResource

CANCEL_RETRY: Final = timedelta(seconds=30)
PRICED_AFTER: Final = timedelta(seconds=MIN_DURATION_S)
"""Minimum age of nodes before they are reported, together with the start of their billing.
A lower value uses catalog prices where SkyPilot's cost report would be more accurate; a higher value delays cost
limits."""
MAX_REQUESTED: Final = 16
"""Limit of launch requests that SkyPilot works on at once; others wait for the next poll.
A lower value delays launches of many jobs; with a higher value, SkyPilot's server starts so many processes of 150 MB that
it may respond to nothing else for minutes."""
REPORT_LEFTOVERS_AFTER: Final = timedelta(minutes=15)
"""Time after a launch's end until leftovers are reported.
It covers SkyPilot's cleanup, then Holdfast's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkyPilotConfig:
    """Configuration of the SkyPilot launcher."""

    shares_files: bool
    """Whether the server sees this machine's files under the same paths."""
    list_every_s: float = 30.0
    """Maximum age of a queue listing in seconds.
    A lower value costs SkyPilot's server seconds of work per listing; a higher value delays observations."""


@dataclass(frozen=True, slots=True)
class ManagedObservation:
    """An observation of one managed job."""

    observation: Observation
    unsettled_since: datetime | None = None
    """Time of nodes that exist and are not part of it yet; None if it has all that SkyPilot reports."""


class SkyPilotLauncher:
    """Managed jobs of one service on one SkyPilot API server, one for each launch key."""

    saves_on_cancel = False
    """SkyPilot's cancel terminates the nodes at once; to save first, request it from the worker."""

    def __init__(
        self,
        *,
        door: SkyPilotClient,
        memory: LaunchStore,
        names: JobNames,
        files: task_body.WorkdirCopies,
        wheelhouse: Callable[[], Path],
        nudge_url: Callable[[str], str | None],
        prices: PlacementPrices,
        clock: Clock,
        terms: SkyPilotConfig,
        avoided: Callable[[], Sequence[AvoidedNode]] = tuple,
    ) -> None:
        """`avoided`: nodes in whose zones launches are tried last."""
        self._client = door
        self._store = memory
        self._names = names
        self._files = files
        self._wheelhouse = wheelhouse
        self._nudge_url = nudge_url
        self._prices = prices
        self._clock = clock
        self._config = terms
        self._avoided = avoided
        self._listings = QueueCache(door, names, clock, terms.list_every_s)
        self._probe = GateProbe(door, memory, clock)
        self._lookup = JobLookup(
            door=door,
            listings=self._listings,
            memory=memory,
            names=names,
            probe=self._probe,
            clock=clock,
        )
        self._info_reader = EngineInfoReader(door, self._probe, clock)
        self._events = EventCache(door, memory)
        self._logs = LogMirror(door, self._events, files.root / "logs", clock)
        self._orphans = orphans.OrphanFinder(door, self._listings, memory, names, clock)
        self._cancelled_at: dict[str, datetime] = {}

    async def submit(self, launch: Launch) -> None:
        """Request a managed job from SkyPilot, unless this launch was requested or cancelled before.

        Raises:
            LaunchRefused: the task can never start.
            LauncherUnreachable: the result is unknown; observe, then submit again.
        """
        try:
            with priority():
                await self._submit(launch)
        except LaunchRefused as refusal:
            # Another replica may have sent the same token in the meantime, without being refused.
            refused = self._store.revoke(launch.key, self._clock.now())
            if refused.state is TokenState.CONSUMED:
                raise LauncherUnreachable(
                    f"SkyPilot accepted this launch before refusing it; retrying ({refusal.detail})"
                ) from refusal
            raise

    async def observe(self, key: str) -> Observation:
        """Return the current observation of `key`.

        Raises:
            LauncherUnreachable: SkyPilot did not respond, or its response cannot be interpreted.
        """
        return (await self.observe_managed(key)).observation

    async def observe_managed(self, key: str) -> ManagedObservation:
        """Return the current observation of `key`, and whether it may still lack earlier events.

        Raises:
            LauncherUnreachable: SkyPilot did not respond, or its response cannot be interpreted.
        """
        row = self._store.find(key)
        if row is None:
            absent = Observation(status=LaunchStatus.ABSENT, since=self._clock.now())
            return ManagedObservation(absent)
        known = row if row.engine_id is not None else await self._lookup.find(row)
        if not isinstance(known, Observation):
            return await self._observe_job(known)
        # A new token follows a request that may have created a job, whose nodes may still run.
        was_asked = row.posted_at is not None or row.generation > 1
        if was_asked and known.status in {LaunchStatus.ABSENT, LaunchStatus.ENDED}:
            known = await self._with_leftovers(row, known)
        return ManagedObservation(known)

    async def cancel(self, key: str) -> None:
        """Request the end of `key`; a launch that was not submitted will never start.

        Raises:
            LauncherUnreachable: it is unknown whether SkyPilot received the request.
        """
        now = self._clock.now()
        row = self._store.tombstone(key, job_of(key), now)
        asked_at = self._cancelled_at.get(key)
        if row.engine_id is None or (asked_at and now - asked_at < CANCEL_RETRY):
            return
        with priority():
            if await self._find_job(row) is None:
                return  # The number may belong to another job by now.
            await orphans.cancel(self._client, row.engine_id)
        self._cancelled_at[key] = now

    async def logs(self, key: str) -> Sequence[LogSource]:
        """List the logs copied while placements ran, even if SkyPilot is unreachable."""
        await self.copy_logs(key)
        return await self._logs.sources(key)

    async def copy_logs(self, key: str) -> None:
        """Copy new output of the newest placement; SkyPilot keeps it only as long as the nodes."""
        row = self._store.find(key)
        # The number of an unlisted job may belong to another job, with another log.
        if row and row.engine_id is not None and row.missing_since is None:
            await self._logs.refresh(key, row.engine_id)

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """Read at most `limit` bytes of a log from `offset`; empty at its end."""
        return self._logs.read(key, source, offset, limit)

    def keys_with_files(self) -> Sequence[str]:
        """Return the keys of launches with copied logs. Sweeps delete the copies of code."""
        return self._logs.keys()

    def discard(self, key: str) -> None:
        """Delete the copied logs of an ended launch."""
        self._logs.discard(key)

    @property
    def log_mirror(self) -> LogMirror:
        """The copies of logs."""
        return self._logs

    @property
    def shared_resources(self) -> str:
        """Describe what users' jobs share in the clouds."""
        return "SkyPilot's credentials, with access to the same clouds, buckets and volumes"

    @property
    def strangers(self) -> Sequence[OrphanedResource] | None:
        """Jobs and clusters that the latest sweep left alone; None before the first sweep."""
        return self._orphans.strangers

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        """Stop this service's orphaned jobs and clusters, and delete unused copies of files.

        Raises:
            LauncherUnreachable: SkyPilot's state is unknown.
        """
        over = [
            key for key in self._files.launch_keys() if self._store.find(key) and not is_live(key)
        ]
        await asyncio.to_thread(self._files.remove, over)
        return await self._orphans.sweep(lambda key: is_live(launch_key(key)))

    async def engine_info(self) -> EngineInfo:
        """Return the state of SkyPilot's server.

        Raises:
            LauncherUnreachable: the server does not respond, or its gate blocks all launches.
        """
        return await self._info_reader.read()

    async def _submit(self, launch: Launch) -> None:
        now = self._clock.now()
        row = self._store.open(launch.key, launch.job_id, now)
        if row.state is not TokenState.ISSUED or row.engine_id is not None or row.cancelled_at:
            return
        if self._has_enough_requests(row):
            return
        await check_version(self._client)
        self._check_lost_launches()
        pause = RETRY_AFTER if await self._probe.is_exactly_once() else QUARANTINE
        if row.posted_at and now - row.posted_at < pause:
            return  # The sent request may still arrive.
        if row.posted_at is None and await self._lookup.exists(row):
            # The launch record is newer than the job: the database was restored to an older state.
            self._store.mark_posting(row, now - QUARANTINE)
            return
        body = await self._body(launch, self._store.token(row))
        # From here on, a crash leaves a launch that may have been requested. The row is written before the request for
        # this reason.
        if self._has_enough_requests(row) or not self._store.mark_posting(row, self._clock.now()):
            return
        try:
            request_id = await self._client.launch(body)
        except RequestFailed as refusal:
            raise LaunchRefused(
                f"SkyPilot rejected the task: {strip_ansi(refusal.detail)}"
            ) from refusal
        self._store.record_request_id(launch.key, row.generation, request_id)

    def _has_enough_requests(self, row: Admission) -> bool:
        """Whether SkyPilot works on as many other launch requests as it should at once."""
        since = self._clock.now() - QUARANTINE
        return self._store.count_requested(since, besides=row.key) >= MAX_REQUESTED

    async def _body(self, launch: Launch, token: str) -> dict[str, object]:
        avoided = await asyncio.to_thread(self._avoided)
        launch = replace(launch, task=task_body.with_avoided_last(launch.task, avoided))
        name = self._names.job_name(launch.key)
        self._logs.register(launch.key, launch.first_attempt)
        source = launch.task.get("workdir")
        task_body.check_mounts(launch)
        task = task_body.build_task(
            launch,
            name=name,
            token=token,
            nudge_url=self._nudge_url(launch.job_id),
            workdir=await asyncio.to_thread(
                # Shared by all node groups, which may be submitted at different times.
                self._files.workdir,
                launch_key(launch.key),
                source,
                launch.folders,
            ),
            wheelhouse=await asyncio.to_thread(self._wheelhouse),
        )
        if self._config.shares_files:
            return task_body.request_body(task, name)
        folders = task_body.local_folders(task)
        asked = task_body.local_folders({"file_mounts": launch.task.get("file_mounts")})
        own = [folder for folder in folders if folder not in asked]
        blob = await upload(self._client, folders, launch.folders, own)
        mapping = {str(folder): str(folder) for folder in folders}
        sent = task_body.request_body({**task, "file_mounts_mapping": mapping}, name)
        return {**sent, "file_mounts_blob_id": blob}

    async def _observe_job(self, row: Admission) -> ManagedObservation:
        assert row.engine_id is not None
        # Listed first, because the events of an unlisted job's number may belong to another job.
        listing = await self._listings.newest()
        job = await self._find_job(row)
        if job is None:
            return ManagedObservation(await self._observe_missing(row))
        if row.lost:
            self._store.record_lost(row.key, None)
        events = await self._events.read(row.key, job)
        # The listing may be older than the events, and another replica's listing newer than this one.
        launched = launched_at(events)
        is_old = launched is not None and listing.requested_at <= launched
        if is_old or is_behind(job, events):
            await self._listings.refresh()
            job = await self._find_job(row)
        if job is None:
            return ManagedObservation(await self._observe_missing(row))
        if row.missing_since:
            self._store.record_missing(row.key, None)
        if still := await self._lookup.never_started(row, job):
            return ManagedObservation(still)
        now = self._clock.now()
        shown = priced_events(listed_events(events, job), now - PRICED_AFTER)
        nodes = job.nodes or 1
        cluster = cluster_of(self._names.job_name(row.key), row.engine_id)
        seen = observe(shown, job, nodes, PlacementPrice(0, 0), now)
        if seen.placements:
            price = await self._prices.get(cluster, job, nodes, placements=seen.placements)
            seen = observe(shown, job, nodes, price, now, earlier=self._prices.cached(cluster))
        if seen.result:
            seen = await self._confirm_end(row, seen, job)
        return ManagedObservation(seen, unsettled_since(events, shown))

    async def _find_job(self, row: Admission) -> ManagedJob | None:
        """Find the job of a launch, including ended ones; None if SkyPilot has none."""
        assert row.engine_id is not None
        job = self._job_in(row, await self._listings.newest())
        return job or await self._listings.find_by_id(row.engine_id, self._names.job_name(row.key))

    def _check_lost_launches(self) -> None:
        """Raise unless all launches lost by SkyPilot have been dealt with.

        Raises:
            LauncherUnreachable: SkyPilot lost the records of a launch that may still run.
        """
        if undecided := self._store.undecided():
            more = f" (and {len(undecided) - 1} more)" if len(undecided) > 1 else ""
            raise LauncherUnreachable(
                "SkyPilot has lost its records, so new launches are blocked; "
                f"check {undecided[0].lost}{more}; holdfast doctor lists all of them"
            )

    def _job_in(self, row: Admission, listing: Listing) -> ManagedJob | None:
        assert row.engine_id is not None
        assert row.posted_at, "the launch was requested"
        if listing.requested_at < row.posted_at:
            return (
                None  # Listed before SkyPilot was asked, when this number belonged to another job.
            )
        job = listing.by_id.get(row.engine_id)
        return job if job and job.name == self._names.job_name(row.key) else None

    async def _observe_missing(self, row: Admission) -> Observation:
        """Observe a job missing from the listing: two listings, some time apart, must both lack it.

        Its cluster may still run. A sweep terminates it, and the launch ends only afterwards. If the cluster remains,
        users are notified, and the launch is no longer delayed by it.
        """
        assert row.engine_id is not None
        now = self._clock.now()
        if row.missing_since is None:
            self._store.record_missing(row.key, now)
        if row.missing_since is None or now - row.missing_since < orphans.FORGOTTEN_AFTER:
            raise LauncherUnreachable("SkyPilot no longer lists the job; checking again")
        left = await self._orphans.leftovers(self._names.job_name(row.key), row.engine_id)
        if left and now - row.missing_since < REPORT_LEFTOVERS_AFTER:
            raise LauncherUnreachable(
                f"SkyPilot has lost the job; terminating first: {', '.join(left)}"
            )
        lost = await self._possible_leftover(row)
        if lost and row.cancelled_at is None:
            if lost != row.lost:
                self._store.record_lost(row.key, lost)
            since = row.missing_since
            return Observation(status=LaunchStatus.UNKNOWN, since=since, leftovers=(lost,))
        if row.lost and not lost:
            self._store.record_lost(row.key, None)
        left = (*left, lost) if lost else left
        return Observation(status=LaunchStatus.FORGOTTEN, since=row.missing_since, leftovers=left)

    async def _possible_leftover(self, row: Admission) -> str:
        """Return the cluster an unlisted job may still run on.

        Empty if SkyPilot's cluster records exclude it.
        """
        assert row.engine_id is not None
        cluster = cluster_of(self._names.job_name(row.key), row.engine_id)
        if await self._orphans.is_known(cluster):
            return ""
        launched = newest_location(self._store.events(row.key))
        if not launched and await self._listings.highest_id() >= row.engine_id:
            return ""
        where = f" in {launched}" if launched else ""
        return (
            f"SkyPilot cluster {cluster}{where}, whose records SkyPilot has lost; terminate it in the "
            f"cloud's console, then cancel the job, or pause and resume it"
        )

    async def _with_leftovers(self, row: Admission, seen: Observation) -> Observation:
        """Return the observation of a launch without a job once nothing runs under its key.

        SkyPilot may have created a job and lost it, but not its cluster. A sweep terminates the cluster.
        """
        left = await self._orphans.clusters_of(row.key)
        ended_at = seen.result.at if seen.result else self._clock.now()
        if left and self._clock.now() - ended_at < REPORT_LEFTOVERS_AFTER:
            raise LauncherUnreachable(
                f"SkyPilot has lost the job; terminating first: {', '.join(left)}"
            )
        return replace(seen, leftovers=left)

    async def _confirm_end(self, row: Admission, seen: Observation, job: ManagedJob) -> Observation:
        """Return the end once listings show that nothing of the launch is left."""
        assert seen.result
        assert row.engine_id is not None
        left = await self._orphans.leftovers(self._names.job_name(row.key), row.engine_id)
        if job.status.is_terminal and not left:
            return seen
        if (
            not job.status.is_terminal
            or self._clock.now() - seen.result.at < REPORT_LEFTOVERS_AFTER
        ):
            status = (
                LaunchStatus.UP
                if seen.recent_placements and not seen.recent_placements[-1].lost_at
                else LaunchStatus.WAITING
            )
            return replace(seen, status=status, result=None)
        return replace(seen, leftovers=left)
