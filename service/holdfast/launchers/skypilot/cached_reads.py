"""Caches SkyPilot's job events and queue listings, and shares other reads.

Events are read by the page and stored, because SkyPilot deletes them after thirty days. One queue listing serves all
jobs, because each costs the server seconds. It contains active jobs only, so that it stays small; ended jobs are looked
up by number or name.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.models import FIELDS, ManagedJob, read_events, read_listing
from holdfast.launchers.skypilot.naming import JobNames
from holdfast.launchers.skypilot.responses import Unanswered
from holdfast.ports import Clock

PAGE: Final = 100
"""Events per read.
With fewer, more happens between two observations than fits into a page, and all events are read; with more, each
observation costs SkyPilot more."""


class EventCache:
    """The stored events of all launches."""

    def __init__(self, door: SkyPilotClient, memory: LaunchStore) -> None:
        self._client = door
        self._store = memory
        self._queued: dict[str, ManagedJob] = {}
        """Rows of queued jobs whose events have been read, by launch."""

    async def read(self, key: str, job: ManagedJob) -> tuple[EngineEvent, ...]:
        """Return the events of a launch so far, oldest first, and store new ones.

        A queued job gets no events until a listing shows another row, so that they are read once.

        Raises:
            LauncherUnreachable: the read failed.
        """
        known = self._store.events(key)
        if self._queued.get(key) == job:
            return known
        news = await self._new_events(known, job.engine_id)
        if job.is_queued:
            self._queued[key] = job
        else:
            self._queued.pop(key, None)
        return self._store.append_events(key, news) if news else known

    async def peek(self, key: str, engine_id: int) -> tuple[EngineEvent, ...]:
        """Return the events of a launch without storing new ones, for read-only callers.

        Raises:
            LauncherUnreachable: the read failed.
        """
        known = self._store.events(key)
        return (*known, *await self._new_events(known, engine_id))

    async def _new_events(self, known: Sequence[EngineEvent], engine_id: int) -> list[EngineEvent]:
        query = {"job_id": engine_id, "limit": PAGE, "include_cluster_events": True}
        events = read_events(await self._client.read("/jobs/events", query))
        seen = set(known)
        if (
            len(events) >= PAGE and events[0] not in seen
        ):  # Events between this page and the stored ones may be missing.
            events = read_events(await self._client.read("/jobs/events", {**query, "limit": None}))
        return [event for event in events if event not in seen]


T = TypeVar("T")


class SharedRead(Generic[T]):
    """A read that serves all callers that wait for it.

    Each gets a result that was requested after its call. SkyPilot's server starts a process of its own for each
    request if many arrive at once, which costs it seconds.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._newest_number = 0
        """Number of the newest result, which exceeds those of all calls before its request."""
        self._newest: T | LauncherUnreachable | None = None

    async def get(self) -> T:
        """Return a result that was requested after this call, by any caller.

        Raises:
            LauncherUnreachable: the read failed.
        """
        number = next(self._numbers)
        async with self._lock:
            if self._newest_number < number:
                begun = next(self._numbers)
                try:
                    self._newest = await self._read()
                except LauncherUnreachable as error:
                    self._newest = error
                self._newest_number = begun
            if isinstance(self._newest, LauncherUnreachable):
                raise self._newest
            assert self._newest is not None
            return self._newest


PATH: Final = "/jobs/queue/v2"
MAX_LISTING_TIME: Final = timedelta(minutes=5)
"""How long SkyPilot may take for one listing before another is requested.
A lower value makes an overload worse, because both run; a higher value waits for listings that died with their
server process."""
MAX_CACHED_ENDED: Final = 4096
"""Ended jobs kept in memory.
A lower value queries them again while they are viewed; a higher value uses more memory."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The active managed jobs of this service at one moment."""

    requested_at: datetime
    """When the listing was requested; it contains everything that happened before."""
    rows: tuple[ManagedJob, ...]
    by_id: Mapping[int, ManagedJob] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {row.engine_id: row for row in self.rows})

    def jobs_named(self, name: str) -> list[ManagedJob]:
        """Return the jobs of this name, active ones first, then the oldest; names are not unique."""
        mine = (row for row in self.rows if row.name == name and not row.never_started)
        return sorted(mine, key=lambda row: (row.status.is_terminal, row.engine_id))


@dataclass(frozen=True, slots=True)
class _ListingRequest:
    """A listing requested from SkyPilot."""

    requested_at: datetime
    request_id: str


class QueueCache:
    """The newest listing, shared by all callers."""

    def __init__(self, door: SkyPilotClient, names: JobNames, clock: Clock, every_s: float) -> None:
        self._client = door
        self._names = names
        self._clock = clock
        self._every = timedelta(seconds=every_s)
        self._newest: Listing | None = None
        self._due_at: datetime | None = None
        """When the newest listing expires; None while there is none."""
        self._pending: _ListingRequest | None = None
        """The listing SkyPilot is working on; None if there is none."""
        self._lock = asyncio.Lock()
        self._ended: OrderedDict[int, ManagedJob] = OrderedDict()
        """Ended jobs by number; later listings do not change them."""
        self._pending_census: _ListingRequest | None = None
        """The request for `_initial_names` while SkyPilot works on it."""
        self._initial_names: frozenset[str] | None = None
        """Names of all jobs that existed at the first query; None before."""

    async def newest(self) -> Listing:
        """Return a listing that is recent enough.

        Raises:
            LauncherUnreachable: there is none.
        """
        async with self._lock:
            if self._newest and self._due_at and self._clock.now() <= self._due_at:
                return self._newest
            return await self._list()

    async def refresh(self) -> Listing:
        """Return a listing requested after this call, by any caller.

        Raises:
            LauncherUnreachable: there is none.
        """
        moment = self._clock.now()
        async with self._lock:
            # A waiting caller finds what was requested in the meantime, so that one listing serves many.
            listing = self._newest or await self._list()
            while listing.requested_at < moment:
                listing = await self._list()
            return listing

    async def find_by_id(self, engine_id: int, name: str) -> ManagedJob | None:
        """Return the job of this number and name, active or ended; None if there is none.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        known = self._ended.get(engine_id)
        if known and known.name == name:
            return known
        rows = await self._rows(job_ids=[engine_id])
        job = next((row for row in rows if (row.engine_id, row.name) == (engine_id, name)), None)
        if job and job.status.is_terminal:
            self._ended[engine_id] = job
            while len(self._ended) > MAX_CACHED_ENDED:
                self._ended.popitem(last=False)
        return job

    async def find_by_name(self, name: str) -> Listing:
        """Return the jobs of this name, active or ended.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        asked_at = self._clock.now()
        rows = await self._rows(name_match=name)
        return Listing(asked_at, tuple(row for row in rows if row.name == name))

    async def existed_at_start(self, name: str) -> bool:
        """Whether a job of this name existed when this process first listed all jobs.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        async with self._lock:
            if self._initial_names is None:
                self._pending_census = await self._request_listing(self._pending_census, {})
                order, self._pending_census = self._pending_census, None
                try:
                    value = await self._client.result(order.request_id, PATH)
                except Unanswered:
                    self._pending_census = order
                    raise
                rows = read_listing(value)
                self._initial_names = frozenset(row.name for row in rows if not row.never_started)
        return name in self._initial_names

    async def highest_id(self) -> int:
        """Return the highest job number at SkyPilot, of any owner; 0 if there are no jobs.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        page = {"page": 1, "limit": 1, "sort_by": "job_id", "sort_order": "desc"}
        return max((row.engine_id for row in await self._rows(**page)), default=0)

    async def _rows(self, **which: Any) -> list[ManagedJob]:
        body = {"fields": list(FIELDS), "all_users": True, **which}
        return read_listing(await self._client.read(PATH, body))

    async def _request_listing(
        self, order: _ListingRequest | None, which: Mapping[str, Any]
    ) -> _ListingRequest:
        """Return the pending request; request another listing if there is none or it takes too long."""
        now = self._clock.now()
        if order and now - order.requested_at < MAX_LISTING_TIME:
            return order
        ours = {"name_match": self._names.prefix, **which}
        body = {"fields": list(FIELDS), "all_users": True, **ours}
        return _ListingRequest(now, await self._client.submit(PATH, body))

    async def _list(self) -> Listing:
        """Return the pending listing or a new one. Only one runs at a time: a slow one is awaited."""
        self._pending = await self._request_listing(self._pending, {"skip_finished": True})
        order, self._pending = self._pending, None
        try:
            value = await self._client.result(order.request_id, PATH)
        except Unanswered:
            self._pending = order
            raise
        self._newest = Listing(order.requested_at, tuple(read_listing(value)))
        self._due_at = self._clock.now() + self._every
        return self._newest
