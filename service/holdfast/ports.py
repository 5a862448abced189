"""What the service needs from the world, as protocols. Adapters implement them; tests and the demo simulate them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from holdfast_worker.wire import Report

from holdfast.domain.sighting import Sighting


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

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled before.

        Raises:
            LaunchRefused: the task can never be started here, whatever is tried.
            LauncherUnreachable: nobody knows whether it was started; look, then submit again.
        """
        ...

    async def look(self, key: str) -> Sighting:
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


class ReportInbox(Protocol):
    """Reports of workers that could not reach the service and left them where the service can."""

    def take(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        """Reports of a job not seen yet, in order of attempt and n. `seen` is the highest n taken, by attempt."""
        ...


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> datetime:
        """The time now, aware, in UTC."""
        ...
