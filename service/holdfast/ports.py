"""Ports: what the service needs from outside, as protocols.

Adapters implement them; tests and the demonstration simulate them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from holdfast_worker.protocol.reports import Report

from holdfast.domain.events.planning import PlaceState
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.observation import Observation
from holdfast.domain.notifications.channels import Destination, Message
from holdfast.domain.pricing.price_list import RejectedRow
from holdfast.domain.pricing.quotes import PricePoint, PriceQuery, Quote
from holdfast.host.allowed_folders import Folders


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A launch request. The same key always has the same content."""

    key: str
    """`<job>-<launch>`: the launcher starts at most one thing under it, ever."""
    job_id: str
    first_attempt: int
    """Number of the first attempt of this launch."""
    task: Mapping[str, Any]
    """The rendered SkyPilot task; with node groups that of the first one."""
    group_tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The rendered tasks of all node groups by name, in order; empty without groups."""
    max_failures: int
    """Failures of the user's program after which the launch ends as failed; at least 1."""
    env: Mapping[str, str] = field(default_factory=dict)
    """HOLDFAST_* variables of this launch's worker, including its token; never stored."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secret environment variables of the program; never stored, never displayed."""
    folders: Folders = field(default_factory=Folders)
    """Directories of the service's machine that the job may use. Launchers check again what they
    copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSource:
    """One log of one attempt: the output of a node or a rank."""

    attempt: int
    node: int
    rank: int | None
    """Global rank; None for output of the node itself (setup, launcher)."""
    size_bytes: int
    is_hosted: bool = False
    """Whether the rank is of a missing node and ran on this one."""


class Launcher(Protocol):
    """Starts, observes and stops the nodes of jobs. Every call may raise `LauncherUnreachable`.

    The contract suite in `tests/contract` defines the common behavior: submit is idempotent by key, and attempts
    never decrease. A cancel is idempotent, takes effect eventually, and wins over a later submit.
    """

    @property
    def saves_on_cancel(self) -> bool:
        """Whether `cancel` leaves the worker time to save.

        Otherwise the worker is asked to exit first.
        """
        ...

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled before.

        Raises:
            LaunchRefused: the task can never be started here.
            LauncherUnreachable: the result is unknown; observe, then submit again.
        """
        ...

    async def observe(self, key: str) -> Observation:
        """The current observation of the launch `key`."""
        ...

    async def cancel(self, key: str) -> None:
        """Request the end of `key`; a launch that was never submitted will then never start."""
        ...

    async def logs(self, key: str) -> Sequence[LogSource]:
        """The logs of all attempts of `key` so far."""
        ...

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """Read at most `limit` bytes of a log from `offset`; empty at its end.

        Blocking: call it from a thread.
        """
        ...


@runtime_checkable
class Preemptible(Protocol):
    """A launcher that preempts nodes on request, as a spot market would (local, simulated)."""

    async def preempt(self, key: str, *, node: int | None, notice_s: float | None) -> None:
        """Preempt one node (None: any) of the current attempt. `notice_s` None: without notice.

        Raises:
            NotPossibleNow: nothing runs under this key.
        """
        ...

    async def replaces_alone(self, key: str, *, node: int | None) -> bool:
        """Whether the other nodes would keep the state until `node` is replaced.

        None: the node that `preempt` chooses.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedPlaces:
    """What a recorded market shows at a moment."""

    tick_s: float
    """Interval in which it changes."""
    places: tuple[PlaceState, ...]
    """All zones, named `local/<zone>`, with the prices of one node."""


@runtime_checkable
class RecordedMarket(Protocol):
    """A launcher whose spot market may be a recording (local, simulated)."""

    def recorded_market(self, at: datetime, *, nodes: int = 1) -> RecordedPlaces | None:
        """The market at a moment for launches of `nodes` nodes; None if it is no recording.

        It shows only what the recording contains up to that moment. Fast and thread-safe.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeOffer:
    """The prices of one node at a place, in micro-dollars per hour."""

    place: str
    spot_micros: int
    on_demand_micros: int
    is_estimate: bool = False


@runtime_checkable
class SellsNodes(Protocol):
    """A launcher that sets the prices of nodes itself (local, simulated, Slurm)."""

    def node_offers(self, place: str) -> Sequence[NodeOffer]:
        """The offers within a place of a job file, without a request to the engine."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class OrphanedResource:
    """A resource that runs, or ran, although its launch has ended."""

    key: str | None
    """The launch that it belongs to; None if unknown."""
    description: str
    """Description and location, for manual removal; identical at every sweep."""
    since: datetime
    """Since when it is orphaned, or the time of the sweep if unknown."""
    stopped: bool
    """Whether it is stopped by now."""


@runtime_checkable
class OrphanScan(Protocol):
    """A launcher that can find orphaned resources."""

    @property
    def strangers(self) -> Sequence[OrphanedResource] | None:
        """Resources of launches unknown to the database; None before the first sweep.

        The newest sweep left them alone. Thread-safe.
        """
        ...

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        """The resources that belong to no live launch, stopped if possible.

        `is_live` returns whether the launch of a key may run; None means that the database does not know the
        launch, which is then left alone. It raises `StoreUnavailable` if the answer is unknown. Repeated or
        concurrent sweeps are harmless.

        Raises:
            LauncherUnreachable: the resources cannot be listed.
        """
        ...


@runtime_checkable
class SharedLauncher(Protocol):
    """A launcher through which jobs of different users share resources."""

    @property
    def shared_resources(self) -> str:
        """Description of the shared resources; empty if it accepts no jobs of users."""
        ...


@runtime_checkable
class CopiesLogs(Protocol):
    """A launcher whose logs are lost with the nodes unless they are copied in time."""

    async def copy_logs(self, key: str) -> None:
        """Copy the output of the nodes of `key` since the last copy.

        The next call repeats a failed copy.
        """
        ...


@runtime_checkable
class LaunchFileStore(Protocol):
    """A launcher that stores files of its launches: logs, reports and copies of code.

    Blocking: call it from a thread. Every call may raise `LauncherUnreachable`.
    """

    def keys_with_files(self) -> Sequence[str]:
        """Keys of the launches that have such files."""
        ...

    def discard(self, key: str) -> None:
        """Delete the files of an ended launch, and keep its record.

        A launch that may still run keeps all.

        Raises:
            OSError: some files could not be deleted; call again later.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """The properties that an engine reports."""

    version: str
    guarantee: str
    """The guarantee about launches."""
    waits_for_service: bool
    """Whether it can neither recover jobs nor launch those of others while this service is
    unavailable."""
    clouds: tuple[str, ...] | None
    """Where it can rent nodes now; None until it has reported this, as in its first minute."""
    clock_skew_s: float | None
    """How far its clock is ahead of ours; None if unknown."""


@runtime_checkable
class RemoteLauncher(Protocol):
    """A launcher with a separate engine, which may be unavailable."""

    async def engine_info(self) -> EngineInfo:
        """Query the engine's properties.

        Raises:
            LauncherUnreachable: it does not respond, or cannot launch anything.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherHealth:
    """Health of the engine behind a launcher."""

    engine: Engine
    engine_info: EngineInfo | None = None
    """Its last response; None before the first one, and for a launcher without an engine."""
    answered_at: datetime | None = None
    error: str | None = None
    """Why the newest probe failed; None if it succeeded."""
    since: datetime | None = None
    """Time of the first failure; None without one."""


class AdmissionReview(Protocol):
    """A launch request that SkyPilot's server submits for admission."""

    @property
    def token(self) -> str | None:
        """The launch token in it; None for a request that concerns no launch of this service."""
        ...

    @property
    def consumes_token(self) -> bool:
        """Whether its token is used up by admission."""
        ...

    def unchanged_reply(self) -> str:
        """The reply that admits the request unchanged: a string, to be encoded as JSON."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a checkpoint store."""

    key: str
    size_bytes: int
    written_at: datetime
    """Time of its last write, by the store's clock."""


@dataclass(frozen=True, slots=True)
class StoreListing:
    """A listing of a store."""

    listed_at: datetime
    """Time of the listing, by the store's clock."""
    objects: Sequence[StoredObject]


class CheckpointBucket(Protocol):
    """The objects of one job in its checkpoint store. Blocking: call it from a thread.

    The contract suite in `tests/contract` defines the common behavior. Every call may raise `CheckpointStoreUnreachable`,
    from which nothing follows, and `CheckpointStoreRefused`, which a retry would raise again.
    """

    def list_objects(self, directory: str) -> StoreListing:
        """List all objects below a directory, whose name ends with a slash.

        An empty directory counts as an object.
        """
        ...

    def list_directories(self, prefix: str) -> Sequence[str]:
        """List the topmost directories with this prefix, each with a trailing slash.

        Their contents are not read.
        """
        ...

    def has(self, key: str) -> bool:
        """Whether an object exists, by a direct request rather than a possibly stale listing."""
        ...

    def read(self, key: str) -> bytes | None:
        """The content of an object; None if it does not exist."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""
        ...


OpenBucket = Callable[[str, str, Mapping[str, str]], CheckpointBucket]
"""Returns the bucket of a job, given its store, its id and its environment variables."""


class SecretStore(Protocol):
    """The secrets that users gave to their jobs."""

    def open(self, job_id: str) -> Mapping[str, str]:
        """The secrets of a job, by name.

        Raises:
            LaunchRefused: another service encrypted them, so they cannot be read.
        """
        ...

    def forget(self, job_id: str) -> None:
        """Delete the secrets of a job."""
        ...


class ReportInbox(Protocol):
    """Reports that workers left where the service can read them because they could not reach it."""

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        """Read new reports of a job, in order of attempt and number.

        `seen` is the highest number recorded, by attempt. If reports after `seen` no longer exist,
        the first of an attempt is the oldest that does.

        Raises:
            LauncherUnreachable: they cannot be read this time.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceList:
    """Prices of a kind of node."""

    quotes: tuple[Quote, ...]
    """One for each place, the cheapest accelerator first."""
    refused: tuple[RejectedRow, ...]
    """Catalog rows rejected as implausible."""


class PriceCatalog(Protocol):
    """Prices of nodes.

    Blocking, as clouds may be called: call it from a thread. It raises nothing.
    """

    def quote(self, wanted: PriceQuery, at: datetime) -> Quote:
        """The price of a node at a moment, never 0.

        A high estimate, marked as such, if no source has it.
        """
        ...

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> Sequence[PricePoint]:
        """The price of a node at `since` and its changes until `until`, oldest first.

        It is empty without a source.
        """
        ...

    def find(self, wanted: PriceQuery, at: datetime) -> PriceList:
        """All prices of a kind of node at the requested places; a count of 0 matches any count."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityHint:
    """What a provider says of spot nodes at a place before they are requested."""

    probability: float
    """How likely a placement is, from 0 to 1. It compares places, and is no measured frequency."""
    source: str
    as_of: datetime
    uptime_s: float | None = None
    """Time that most nodes can be expected to run; None if the provider does not say."""
    preemption_rate: float | None = None
    """Share of spot nodes that stopped because the provider took them, in the last days; None likewise."""


class CapacityHints(Protocol):
    """Hints of providers.

    Blocking, as clouds may be called: call it from a thread. It raises nothing, and nothing fails without it.
    """

    def score(
        self, place: str, instance_type: str | None, nodes: int, at: datetime
    ) -> CapacityHint | None:
        """How likely so many spot nodes are at a place; None if the provider does not say."""
        ...


class Messenger(Protocol):
    """Sends messages to users' channels."""

    def destination(self, url: str) -> Destination:
        """Where a URL leads, without a network request.

        Raises:
            BadChannel: it is invalid, or this service may not send there.
        """
        ...

    def send(self, url: str, secrets: Sequence[str], message: Message) -> None:
        """Deliver a message. Blocking, for seconds at most: call it from a thread.

        `secrets` sign the message, if it is a webhook.

        Raises:
            NotDelivered: it was not accepted, or the result is unknown.
            BadChannel: as with `destination`; settings may have changed since.
        """
        ...


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> datetime:
        """The current time, aware, in UTC."""
        ...
