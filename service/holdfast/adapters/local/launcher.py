"""The local launcher: the port, over launch directories."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from holdfast.adapters.local import history, lock
from holdfast.adapters.local.folder import LaunchFolder, PreemptRequest
from holdfast.adapters.local.history import Line, What
from holdfast.adapters.local.submission import submit
from holdfast.adapters.local.sweep import sweep
from holdfast.clock import SystemClock
from holdfast.domain.events import Outcome
from holdfast.domain.sighting import Ending, Sighting, Standing
from holdfast.domain.weather import Climate
from holdfast.errors import LauncherUnreachable, NotPossibleNow
from holdfast.ports import Clock, Launch, LogSource


class LocalLauncher:
    """Launches of one home directory. It keeps nothing in memory: any number of them, in any process, agree."""

    saves_on_cancel: Final = True
    """A cancel is a signal first, with time to save before the kill."""

    def __init__(self, home: Path, climate: Climate, clock: Clock = SystemClock()) -> None:
        self._home = home
        self._climate = climate
        self._clock = clock

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled before; it has begun when this returns."""
        folder = self._folder(launch.key)
        await asyncio.to_thread(submit, folder, launch, self._climate, self._home)

    async def look(self, key: str) -> Sighting:
        """What stands under `key` now."""
        return await asyncio.to_thread(self._look, key)

    async def cancel(self, key: str) -> None:
        """Ask for an end of `key`; what was never submitted will then never start."""
        await asyncio.to_thread(self._folder(key).entomb, self._clock.now())

    async def preempt(self, key: str, *, node: int | None, notice_s: float | None) -> None:
        """Take one node (None: the last one) of the standing placement; it is gone some time after this returns.

        Raises:
            NotPossibleNow: nothing stands under this key, or it has no such node.
        """
        await asyncio.to_thread(self._preempt, key, node, notice_s)

    async def logs(self, key: str) -> Sequence[LogSource]:
        """The logs that the placements of `key` have left so far, by attempt, node and rank."""
        return await asyncio.to_thread(self._logs, key)

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a log from `offset`; empty at its end, and for a log that is not there."""
        node = self._folder(key).node(source.attempt, source.node)
        path = node.log if source.rank is None else node.rank_log(source.rank)
        try:
            with path.open("rb") as log:
                log.seek(offset)
                return log.read(limit)
        except FileNotFoundError:
            return b""

    def _folder(self, key: str) -> LaunchFolder:
        assert key not in {"", ".", ".."}, "keys are made by Holdfast, never typed"
        assert "/" not in key, "keys are made by Holdfast, never typed"
        return LaunchFolder(self._home / "launches" / key)

    def _look(self, key: str) -> Sighting:
        folder = self._folder(key)
        if not folder.path.exists():
            return Sighting(standing=Standing.ABSENT, since=self._clock.now())
        try:
            return self._see(folder)
        except OSError as error:
            raise LauncherUnreachable(f"the launch directory cannot be read: {error}") from error

    def _see(self, folder: LaunchFolder) -> Sighting:
        lines = folder.history.read()
        if history.over(lines):
            return history.sight(lines)
        if (holder := lock.take(folder.lock)) is None:
            # Somebody acts for it: a supervisor, or a submitter that has not started one yet.
            lines = folder.history.read()
            now = self._clock.now()
            return history.sight(lines) if lines else Sighting(standing=Standing.WAITING, since=now)
        try:
            return self._unattended(folder)
        finally:
            os.close(holder)

    def _unattended(self, folder: LaunchFolder) -> Sighting:
        """A launch that nobody acts for, seen by the holder of its lock."""
        lines = folder.history.read()
        cancelled_at = folder.entombed_at()
        if history.over(lines):
            return history.sight(lines)
        if history.begun(lines):
            sweep(folder)
            folder.history.append(_last_line(self._clock.now(), cancelled=cancelled_at is not None))
            return history.sight(folder.history.read())
        if cancelled_at is not None:
            ending = Ending(
                at=cancelled_at, outcome=Outcome.CANCELLED, detail="cancelled before it began"
            )
            return Sighting(standing=Standing.ENDED, since=cancelled_at, ending=ending)
        return Sighting(standing=Standing.ABSENT, since=self._clock.now())

    def _preempt(self, key: str, node: int | None, notice_s: float | None) -> None:
        seen = self._look(key)
        if seen.standing is not Standing.UP:
            raise NotPossibleNow(f"{key} has no standing nodes; it is {seen.standing}")
        nodes = seen.trail[-1].nodes
        chosen = nodes - 1 if node is None else node
        if not 0 <= chosen < nodes:
            raise NotPossibleNow(f"{key} has no node {chosen}; its nodes are 0 to {nodes - 1}")
        self._folder(key).ask_preemption(PreemptRequest(seen.placements, chosen, notice_s))

    def _logs(self, key: str) -> list[LogSource]:
        folder = self._folder(key)
        sources = []
        for attempt, node in folder.nodes():
            place = folder.node(attempt, node)
            for rank in (None, *place.ranks()):
                path = place.log if rank is None else place.rank_log(rank)
                size_bytes = path.stat().st_size if path.exists() else 0
                sources.append(
                    LogSource(attempt=attempt, node=node, rank=rank, size_bytes=size_bytes)
                )
        return sources


def _last_line(at: datetime, *, cancelled: bool) -> Line:
    """How a launch ends whose supervisor is dead: as it was asked to, or forgotten."""
    if not cancelled:
        return Line(at, What.FORGOTTEN)
    detail = "cancelled on request"
    return Line(at, What.ENDED, {"outcome": Outcome.CANCELLED, "exit_code": None, "detail": detail})
