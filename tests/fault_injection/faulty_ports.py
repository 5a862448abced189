"""Doors that stick: a launcher behind a bad line, spools that are late, a journal whose writer dies."""

from __future__ import annotations

import random
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
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
    """The process is gone; no code remains that could catch this."""


@types.coroutine
def pause() -> Generator[None]:
    """Let others continue; the world decides when, and whether, we do."""
    yield


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, if it never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("this was not to wait for anybody")


@dataclass
class FaultChances:
    """Draws what goes wrong."""

    rng: random.Random
    calm: bool = False
    """True once the faults are off."""

    def strikes(self, chance: float) -> bool:
        return not self.calm and self.rng.random() < chance


@dataclass
class FaultyLauncher:
    """A cloud behind a bad line."""

    cloud: SimulatedCloud
    chances: FaultChances
    starts: Counter[str] = field(default_factory=Counter)
    """How often the cloud really began something, by key."""

    @property
    def saves_on_cancel(self) -> bool:
        return self.cloud.saves_on_cancel

    async def submit(self, launch: Launch) -> None:
        async def deed() -> None:
            fresh = (await self.cloud.observe(launch.key)).status is LaunchStatus.ABSENT
            await self.cloud.submit(launch)
            self.starts[launch.key] += fresh

        await self._call(deed, twice=True)

    async def observe(self, key: str) -> Observation:
        return await self._call(lambda: self.cloud.observe(key))

    async def cancel(self, key: str) -> None:
        await self._call(lambda: self.cloud.cancel(key), twice=True)

    async def logs(self, key: str) -> Sequence[LogSource]:
        return await self.cloud.logs(key)

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        return self.cloud.read_log(key, source, offset, limit)

    async def _call(self, deed: Callable[[], Awaitable[T]], *, twice: bool = False) -> T:
        await pause()
        if self.chances.strikes(0.05):
            raise LauncherUnreachable("the call was lost")
        answer = await deed()
        if twice and self.chances.strikes(0.1):
            answer = await deed()
        await pause()
        if self.chances.strikes(0.05):
            raise LauncherUnreachable("the reply was lost")
        return answer


@dataclass
class FaultyInbox:
    """Spools that are sometimes late, and sometimes read from further back than was asked."""

    cloud: SimulatedCloud
    chances: FaultChances

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        if self.chances.strikes(0.5):
            return iter(())
        if self.chances.strikes(0.1):
            return self.cloud.read_new(job_id, {})
        return self.cloud.read_new(job_id, seen)


class FaultyJournal(Journal):
    """A journal whose writer dies, or whose database goes away, before a write or right after it."""

    def __init__(self, engine: Engine, clock: FixedClock, chances: FaultChances) -> None:
        super().__init__(engine, clock)
        self._chances = chances

    def append(self, job: Job, events: Sequence[Event]) -> Job:
        self._trouble()
        after = super().append(job, events)
        self._trouble()
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
        self._trouble()
        absorbed = super().ingest(job_id, attempt, reports, incarnation, posted_at, oldest=oldest)
        self._trouble()
        return absorbed

    def _trouble(self) -> None:
        if self._chances.strikes(0.02):
            raise Crash
        if self._chances.strikes(0.02):
            raise StoreUnavailable
