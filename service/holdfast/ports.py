"""What the service needs from the world, as protocols. Adapters implement them; tests and the demo simulate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from holdfast_worker.protocol.reports import Report

from holdfast.domain.jobs.observation import Observation
from holdfast.domain.notifications.channels import Destination, Message
from holdfast.domain.pricing.price_list import RejectedRow
from holdfast.domain.pricing.quotes import Change, PriceQuery, Quote
from holdfast.host.allowed_folders import Folders


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One order to a launcher. The same key always comes with the same content."""

    key: str
    """`<job>-<launch>`: the launcher starts at most one thing under it, ever."""
    job_id: str
    first_attempt: int
    """Number of the attempt that the first placement of this launch begins."""
    task: Mapping[str, Any]
    """The rendered SkyPilot task."""
    max_failures: int
    """How often the user's own program may fail before the launch ends as failed; at least 1."""
    env: Mapping[str, str] = field(default_factory=dict)
    """HOLDFAST_* of the worker that belong to this launch alone, the token among them; never stored."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of the program whose values are nobody else's business; never stored, never shown."""
    folders: Folders = field(default_factory=Folders)
    """What of the service's machine the job may use. Launchers check again what they copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSource:
    """One log of one attempt: what a node or a rank printed."""

    attempt: int
    node: int
    rank: int | None
    """Global rank; None for what the node itself printed (setup, launcher)."""
    size_bytes: int


class Launcher(Protocol):
    """Starts, watches and stops the nodes of jobs. Every call may raise `LauncherUnreachable`.

    The contract suite in `tests/contract` says what all launchers have in common: submit is idempotent by key,
    placements never decrease, a cancel is idempotent, eventually seen, and wins over a submit that comes after it.
    """

    @property
    def saves_on_cancel(self) -> bool:
        """Whether `cancel` gives the worker time to save its work. Where not, it is asked to leave before."""
        ...

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled before.

        Raises:
            LaunchRefused: the task can never be started here, whatever is tried.
            LauncherUnreachable: nobody knows whether it was started; look, then submit again.
        """
        ...

    async def look(self, key: str) -> Observation:
        """What stands under `key` now."""
        ...

    async def cancel(self, key: str) -> None:
        """Ask for an end of `key`; what was never submitted will then never start."""
        ...

    async def logs(self, key: str) -> Sequence[LogSource]:
        """The logs that the placements of `key` have left so far."""
        ...

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a log from `offset`; empty at its end. Blocking: call it from a thread."""
        ...


@runtime_checkable
class Preemptible(Protocol):
    """A launcher that can take nodes away on request, as a spot market would (local, simulated)."""

    async def preempt(self, key: str, *, node: int | None, notice_s: float | None) -> None:
        """Take one node (None: any) of the standing placement; `notice_s` None means without a word before.

        Raises:
            NotPossibleNow: nothing stands under this key.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class OrphanedResource:
    """Something that runs, or ran, although its launch is over."""

    key: str | None
    """The launch that it belongs to; None where it does not say."""
    what: str
    """What it is and where, for whoever has to remove it by hand; the same at every sweep."""
    since: datetime
    """Since when it has no business there, or the time of the sweep where nobody knows."""
    stopped: bool
    """Whether it is gone by now."""


@runtime_checkable
class OrphanScan(Protocol):
    """A launcher that can find what its launches have left behind."""

    @property
    def strangers(self) -> Sequence[OrphanedResource] | None:
        """What the newest sweep left alone, because the database does not know its launch; None before the first sweep.

        Read from any thread.
        """
        ...

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        """What runs without belonging to a live launch, stopped where that could be done.

        `is_live` says of a key whether its launch may run; None means that the database does not know the launch, which
        is then left alone. It raises `StoreUnavailable` where nobody knows. To sweep twice, or from two replicas at once,
        does no harm.

        Raises:
            LauncherUnreachable: nothing was found out.
        """
        ...


@runtime_checkable
class Shared(Protocol):
    """A launcher through which jobs of different users share something."""

    @property
    def shares(self) -> str:
        """What they share, in words; empty where it takes no jobs of users."""
        ...


@runtime_checkable
class KeepsLogs(Protocol):
    """A launcher whose logs go with the nodes, unless they are copied in time."""

    async def keep_log(self, key: str) -> None:
        """Copy what the nodes of `key` have printed since the last copy. A failed copy is repeated by the next call."""
        ...


@runtime_checkable
class KeepsFiles(Protocol):
    """A launcher that keeps files of its launches: logs, reports and copies of code. Blocking: call it from a thread.

    Every call may raise `LauncherUnreachable`.
    """

    def kept(self) -> Sequence[str]:
        """Keys of the launches that have such files."""
        ...

    def discard(self, key: str) -> None:
        """Remove the files of a launch that is over, and keep the record of it. A launch that may still run keeps all.

        Raises:
            OSError: some files are still there; call again later.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """What an engine says of itself."""

    version: str
    guarantee: str
    """What is promised about launches."""
    waits_for_us: bool
    """Whether it can neither recover jobs nor launch those of others while this service is away."""
    clouds: tuple[str, ...] | None
    """Where it can rent nodes now; None while it has not said, as in the first minute after its start."""
    clock_skew_s: float | None
    """How far its clock is ahead of ours; None where it does not say."""


@runtime_checkable
class RemoteLauncher(Protocol):
    """A launcher with an engine of its own, which may be away while the launcher is there."""

    async def vitals(self) -> EngineInfo:
        """What the engine says of itself now.

        Raises:
            LauncherUnreachable: it does not answer, or nothing can be launched through it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """One object of a checkpoint store."""

    key: str
    size_bytes: int
    at: datetime
    """When it was written, by the store's clock."""


@dataclass(frozen=True, slots=True)
class StoreListing:
    """What a store showed."""

    at: datetime
    """When that was, by the store's clock."""
    objects: Sequence[Stored]


class CheckpointBucket(Protocol):
    """What one job keeps in its checkpoint store, for whoever tidies it up. Blocking: call it from a thread.

    The contract suite in `tests/contract` says what all depots have in common. Every call may raise `DepotUnreachable`,
    of which nothing is concluded, and `DepotRefused`, which would be said again.
    """

    def look(self, directory: str) -> StoreListing:
        """All objects below a directory, whose name ends with a slash. One in which nothing is left is told as an object."""
        ...

    def directories(self, prefix: str) -> Sequence[str]:
        """The uppermost directories that begin so, each with a slash at its end. What is in them is not looked at."""
        ...

    def has(self, key: str) -> bool:
        """Whether there is such an object. By itself, not by a listing, which may come late."""
        ...

    def read(self, key: str) -> bytes | None:
        """An object; None if there is none."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Forget objects; fine if there were none."""
        ...


OpenDepot = Callable[[str, str, Mapping[str, str]], CheckpointBucket]
"""From a store, a job and the variables of the job to what the job keeps there."""


class SecretStore(Protocol):
    """Secrets that people gave to their jobs."""

    def open(self, job_id: str) -> Mapping[str, str]:
        """The secrets of a job, by name.

        Raises:
            LaunchRefused: they were sealed by another service, and nobody can read them.
        """
        ...

    def forget(self, job_id: str) -> None:
        """Keep the secrets of a job no longer."""
        ...


class ReportInbox(Protocol):
    """Reports of workers that could not reach the service and left them where the service can."""

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        """Reports of a job not seen yet, in order of attempt and n. `seen` is the highest n taken, by attempt.

        Where reports after `seen` no longer exist, the first of an attempt is the oldest one that does.

        Raises:
            LauncherUnreachable: they cannot be read this time.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceList:
    """What is known of a kind of node."""

    quotes: tuple[Quote, ...]
    """One for each place, the cheapest accelerator first."""
    refused: tuple[RejectedRow, ...]
    """Rows of price lists that are not believed."""


class PriceCatalog(Protocol):
    """What nodes cost. Blocking, as clouds may be asked: call it from a thread. It raises nothing."""

    def quote(self, wanted: PriceQuery, at: datetime) -> Quote:
        """The price of one node at a moment, never 0; estimated high, and marked, where nobody tells it."""
        ...

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> Sequence[Change]:
        """The price of one node at `since`, and its changes until `until`, oldest first; empty where nobody tells."""
        ...

    def find(self, wanted: PriceQuery, at: datetime) -> PriceList:
        """All prices of a kind of node at the places that are meant; of the kind, the count may be left out (0)."""
        ...


class Messenger(Protocol):
    """Brings messages to where people read them."""

    def place(self, url: str) -> Destination:
        """Where a URL leads, without asking anybody.

        Raises:
            BadChannel: it leads nowhere, or where this service sends nothing.
        """
        ...

    def send(self, url: str, secrets: Sequence[str], letter: Message) -> None:
        """Nothing, once the message was taken. Blocking, for seconds at most: call it from a thread.

        `secrets` are those with which it is signed, if it is a webhook.

        Raises:
            NotDelivered: it was not taken, or nobody knows.
            BadChannel: as with `place`; settings may have changed since.
        """
        ...


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> datetime:
        """The time now, aware, in UTC."""
        ...
