"""Faulty ports: a launcher with a bad connection, late spools, a journal that crashes."""

from __future__ import annotations

import random
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from holdfast.domain.events import Event
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable, StoreUnavailable
from holdfast.launchers.simulated import SimulatedCloud
from holdfast.ports import Launch, LogSource
from holdfast.store.journal import IngestResult, Journal
from holdfast_worker.protocol.reports import Report
from sqlalchemy import Engine
from support.fakes import FixedClock

T = TypeVar("T")


class Crash(BaseException):
    """The process has crashed; none of its code may catch this."""


@types.coroutine
def pause() -> Generator[None]:
    """Yield to other coroutines; the scheduler decides when, and whether, this one continues."""
    yield


@dataclass(eq=False)
class Step:
    """A coroutine that a schedule continues among others, with context variables of its own like a task."""

    work: Coroutine[Any, Any, Any]
    context: Context = field(default_factory=copy_context)

    def resume(self) -> None:
        """Continue to the next pause.

        Raises:
            StopIteration: it has ended.
        """
        self.context.run(self.work.send, None)

    def close(self) -> None:
        """End it where it pauses."""
        self.context.run(self.work.close)


def run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("this was not to wait for anybody")


@dataclass
class FaultChances:
    """Draws which faults occur."""

    rng: random.Random
    is_disabled: bool = False
    """True once faults are disabled."""

    def occurs(self, chance: float) -> bool:
        return not self.is_disabled and self.rng.random() < chance


@dataclass
class FaultyLauncher:
    """A cloud behind a bad connection."""

    cloud: SimulatedCloud
    chances: FaultChances
    starts: Counter[str] = field(default_factory=Counter)
    """How often the cloud started a launch, by key."""

    @property
    def saves_on_cancel(self) -> bool:
        return self.cloud.saves_on_cancel

    async def submit(self, launch: Launch) -> None:
        async def action() -> None:
            fresh = (await self.cloud.observe(launch.key)).status is LaunchStatus.ABSENT
            await self.cloud.submit(launch)
            self.starts[launch.key] += fresh

        await self._call(action, twice=True)

    async def observe(self, key: str) -> Observation:
        return await self._call(lambda: self.cloud.observe(key))

    async def cancel(self, key: str) -> None:
        await self._call(lambda: self.cloud.cancel(key), twice=True)

    async def logs(self, key: str) -> Sequence[LogSource]:
        return await self.cloud.logs(key)

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        return self.cloud.read_log(key, source, offset, limit)

    async def _call(self, action: Callable[[], Awaitable[T]], *, twice: bool = False) -> T:
        await pause()
        if self.chances.occurs(0.05):
            raise LauncherUnreachable("the call was lost")
        answer = await action()
        if twice and self.chances.occurs(0.1):
            answer = await action()
        await pause()
        if self.chances.occurs(0.05):
            raise LauncherUnreachable("the reply was lost")
        return answer


@dataclass
class FaultyInbox:
    """Spools that are sometimes late, or read from an earlier position than requested."""

    cloud: SimulatedCloud
    chances: FaultChances

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        if self.chances.occurs(0.5):
            return iter(())
        if self.chances.occurs(0.1):
            return self.cloud.read_new(job_id, {})
        return self.cloud.read_new(job_id, seen)


class FaultyJournal(Journal):
    """A journal whose writer crashes, or whose database fails, before or after a write."""

    def __init__(self, engine: Engine, clock: FixedClock, chances: FaultChances) -> None:
        super().__init__(engine, clock)
        self._chances = chances

    def append(self, job: Job, events: Sequence[Event]) -> Job:
        self._maybe_fail()
        after = super().append(job, events)
        self._maybe_fail()
        return after

    def ingest(
        self,
        job_id: str,
        attempt: int,
        reports: Any,
        incarnation: str | None = None,
        posted_at: datetime | None = None,
        *,
        oldest: int | None = None,
    ) -> IngestResult:
        self._maybe_fail()
        absorbed = super().ingest(job_id, attempt, reports, incarnation, posted_at, oldest=oldest)
        self._maybe_fail()
        return absorbed

    def _maybe_fail(self) -> None:
        if self._chances.occurs(0.02):
            raise Crash
        if self._chances.occurs(0.02):
            raise StoreUnavailable
