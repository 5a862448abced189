"""Working fakes of the clock and of a launcher, which keep the contracts of the real ones."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation, Placement
from holdfast.launchers.simulated import SimulatedClock
from holdfast.ports import Clock, Launch, LogSource
from holdfast_worker.protocol.reports import Report
from support.events import DAWN, ON_DEMAND, SPOT


class FixedClock(SimulatedClock):
    """A simulated clock that starts at `DAWN`."""

    def __init__(self, start: datetime = DAWN) -> None:
        super().__init__(start)


@dataclass
class FileLauncher:
    """A launcher whose state is one append-only file, which several processes may share.

    A launch has nodes after `ready_s`, and its program succeeds after `runs_s`. Once the nodes are ready, the
    first launch of a job leaves the reports `says` in its spool.
    """

    file: Path
    clock: Clock
    ready_s: float = 3
    runs_s: float = 8
    says: Sequence[Report] = ()
    saves_on_cancel: bool = True

    async def submit(self, launch: Launch) -> None:
        with self._alone():
            if not self.deeds(launch.key):
                self._append("start", launch.key)

    async def observe(self, key: str) -> Observation:
        return self._seen(key)

    async def cancel(self, key: str) -> None:
        with self._alone():
            if not any(deed["deed"] == "cancel" for deed in self.deeds(key)):
                self._append("cancel", key)

    async def logs(self, key: str) -> Sequence[LogSource]:
        return ()

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        return b""

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        if self._seen(f"{job_id}-1").placements:
            yield from (each for each in self.says if each.n > seen.get(each.attempt, 0))

    def forget(self, key: str) -> None:
        """Lose a launch: nothing of it runs afterwards."""
        self._append("forget", key)

    def deeds(self, key: str | None = None) -> list[dict[str, Any]]:
        """Return the recorded actions of launch `key`, or of all launches, in order."""
        if not self.file.exists():
            return []
        lines = map(json.loads, self.file.read_text().splitlines())
        return [line for line in lines if key in (None, line["key"])]

    def _seen(self, key: str) -> Observation:
        return _Life(self.deeds(key), self.ready_s, self.runs_s).seen(self.clock.now())

    def _append(self, deed: str, key: str) -> None:
        line = json.dumps({"deed": deed, "key": key, "at": self.clock.now().isoformat()})
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(
            descriptor, f"{line}\n".encode()
        )  # Written completely or not at all if the process is killed.
        os.close(descriptor)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self.file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # Released by the kernel, also when the process is killed.
            yield


@dataclass
class _Life:
    """One launch of a `FileLauncher`."""

    deeds: list[dict[str, Any]]
    ready_s: float
    runs_s: float
    times: dict[str, datetime] = field(init=False)

    def __post_init__(self) -> None:
        self.times = {deed["deed"]: datetime.fromisoformat(deed["at"]) for deed in self.deeds}

    def seen(self, now: datetime) -> Observation:
        if "start" not in self.times:
            return self._unbegun(now)
        started = self.times["start"]
        ready_at = started + timedelta(seconds=self.ready_s)
        over_at, standing, outcome = self._end(started)
        until = min(now, over_at)
        trail = (_nodes(ready_at),) if ready_at <= until else ()
        known = {"placements": len(trail), "recent_placements": trail}
        if now < over_at:
            up = LaunchStatus.UP if trail else LaunchStatus.WAITING
            return Observation(status=up, since=ready_at if trail else started, **known)
        ending = (
            LaunchResult(at=over_at, outcome=outcome) if standing is LaunchStatus.ENDED else None
        )
        return Observation(status=standing, since=over_at, result=ending, **known)

    def _unbegun(self, now: datetime) -> Observation:
        if at := self.times.get("cancel"):
            ending = LaunchResult(at=at, outcome=Outcome.CANCELLED)
            return Observation(status=LaunchStatus.ENDED, since=at, result=ending)
        return Observation(status=LaunchStatus.ABSENT, since=now)

    def _end(self, started: datetime) -> tuple[datetime, LaunchStatus, Outcome]:
        """Return the earliest end of the launch, past or planned."""
        own = started + timedelta(seconds=self.runs_s)
        ends = [(own, LaunchStatus.ENDED, Outcome.SUCCEEDED)]
        if at := self.times.get("cancel"):
            ends.append((at, LaunchStatus.ENDED, Outcome.CANCELLED))
        if at := self.times.get("forget"):
            ends.append((at, LaunchStatus.FORGOTTEN, Outcome.FAILED))
        return min(ends)


def _nodes(ready_at: datetime) -> Placement:
    return Placement(
        ready_at=ready_at,
        zone="a",
        nodes=1,
        micros_per_hour=SPOT,
        on_demand_micros_per_hour=ON_DEMAND,
        simulated=True,
    )
