"""The local launcher: the port, over launch directories."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from holdfast.clock import SystemClock
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LauncherUnreachable, NotPossibleNow
from holdfast.host.untrusted_files import opened_file
from holdfast.launchers.local import event_log, launch_dir
from holdfast.launchers.local.event_log import LaunchEntry, LaunchEntryKind
from holdfast.launchers.local.launch_dir import LaunchFolder, PreemptRequest
from holdfast.launchers.local.process_cleanup import kill_marked_processes
from holdfast.launchers.local.sandbox import Sandboxes
from holdfast.launchers.local.submission import submit
from holdfast.ports import Clock, Launch, LogSource, OrphanedResource


class LocalLauncher:
    """Launches of one home directory. Only sweeps keep anything in memory: any number of them, in any process, agree."""

    saves_on_cancel: Final = True
    """A cancel is a signal first, with time to save before the kill."""

    def __init__(
        self,
        home: Path,
        climate: MarketParameters,
        clock: Clock = SystemClock(),
        cells: Sandboxes | None = None,
    ) -> None:
        """`cells` are for the jobs of users without rights to this machine; None: these are refused."""
        self._home = home
        self._cells = cells
        self._climate = climate
        self._clock = clock
        self._over: set[str] = set()
        """Launches that have ended: a sweep need not read their histories again."""
        self._strangers: tuple[OrphanedResource, ...] | None = None

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled before; it has begun when this returns."""
        folder = self._folder(launch.key)
        await asyncio.to_thread(submit, folder, launch, self._climate, self._home, self._cells)

    async def look(self, key: str) -> Observation:
        """What stands under `key` now."""
        return await asyncio.to_thread(self._look, key)

    async def cancel(self, key: str) -> None:
        """Ask for an end of `key`; what was never submitted will then never start."""
        await asyncio.to_thread(self._folder(key).tombstone, self._clock.now())

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
            with opened_file(node.path, path.relative_to(node.path).parts) as log:
                log.seek(offset)
                return log.read(limit)
        except (FileNotFoundError, NotADirectoryError):
            return b""

    def kept(self) -> Sequence[str]:
        """Keys of the launches that have more than a record."""
        folders = (LaunchFolder(path) for path in (self._home / "launches").glob("*-*/"))
        return sorted(folder.path.name for folder in folders if folder.has_files())

    def discard(self, key: str) -> None:
        """Remove all files of a launch that is over but its record; a launch that may still run keeps them.

        Raises:
            OSError: some files are still there; call again later.
        """
        folder = self._folder(key)
        if (holder := launch_dir.take(folder.lock)) is None:
            return
        try:
            lines = folder.history.read()
            if not event_log.begun(lines):
                folder.tombstone(self._clock.now())
            if not event_log.begun(lines) or event_log.over(lines):
                folder.discard_files()
        finally:
            os.close(holder)

    @property
    def shares(self) -> str:
        """What jobs of users share on this machine; empty where they are refused."""
        return self._cells.shares if self._cells else ""

    @property
    def strangers(self) -> Sequence[OrphanedResource] | None:
        """Launches that the newest sweep found running although the database does not know them; None before it."""
        return self._strangers

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        """Look for launches that the database does not know; supervisors stop what a known launch leaves behind."""
        running = await asyncio.to_thread(lambda: [*self._running()])
        self._strangers = tuple(stray for stray in running if is_live(stray.key or "") is None)
        return ()

    def _running(self) -> Iterator[OrphanedResource]:
        """All launches whose supervisor is alive."""
        for path in sorted((self._home / "launches").glob("*/history.jsonl")):
            key = path.parent.name
            if key in self._over:
                continue
            folder = self._folder(key)
            lines = folder.history.read()
            if event_log.over(lines):
                self._over.add(key)
            elif event_log.begun(lines) and not launch_dir.is_free(folder.lock):
                what = f"local launch {key}"
                yield OrphanedResource(key=key, what=what, since=lines[0].at, stopped=False)

    def _folder(self, key: str) -> LaunchFolder:
        assert key not in {"", ".", ".."}, "keys are made by Holdfast, never typed"
        assert "/" not in key, "keys are made by Holdfast, never typed"
        return LaunchFolder(self._home / "launches" / key)

    def _look(self, key: str) -> Observation:
        folder = self._folder(key)
        if not folder.path.exists():
            return Observation(standing=LaunchStatus.ABSENT, since=self._clock.now())
        try:
            return self._see(folder)
        except OSError as error:
            raise LauncherUnreachable(f"the launch directory cannot be read: {error}") from error

    def _see(self, folder: LaunchFolder) -> Observation:
        lines = folder.history.read()
        if event_log.over(lines):
            return event_log.sight(lines)
        if (holder := launch_dir.take(folder.lock)) is None:
            # Somebody acts for it: a supervisor, or a submitter that has not started one yet.
            lines = folder.history.read()
            now = self._clock.now()
            return (
                event_log.sight(lines)
                if lines
                else Observation(standing=LaunchStatus.WAITING, since=now)
            )
        try:
            return self._unattended(folder)
        finally:
            os.close(holder)

    def _unattended(self, folder: LaunchFolder) -> Observation:
        """A launch that nobody acts for, seen by the holder of its lock."""
        lines = folder.history.read()
        cancelled_at = folder.entombed_at()
        if event_log.over(lines):
            return event_log.sight(lines)
        if event_log.begun(lines):
            kill_marked_processes(folder)
            folder.history.append(_last_line(self._clock.now(), cancelled=cancelled_at is not None))
            return event_log.sight(folder.history.read())
        if cancelled_at is not None:
            ending = LaunchResult(
                at=cancelled_at, outcome=Outcome.CANCELLED, detail="cancelled before it began"
            )
            return Observation(standing=LaunchStatus.ENDED, since=cancelled_at, ending=ending)
        return Observation(standing=LaunchStatus.ABSENT, since=self._clock.now())

    def _preempt(self, key: str, node: int | None, notice_s: float | None) -> None:
        seen = self._look(key)
        if seen.standing is not LaunchStatus.UP:
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
                size_bytes = path.lstat().st_size if path.exists() else 0
                sources.append(
                    LogSource(attempt=attempt, node=node, rank=rank, size_bytes=size_bytes)
                )
        return sources


def _last_line(at: datetime, *, cancelled: bool) -> LaunchEntry:
    """How a launch ends whose supervisor is dead: as it was asked to, or forgotten."""
    if not cancelled:
        return LaunchEntry(at, LaunchEntryKind.FORGOTTEN)
    detail = "cancelled on request"
    return LaunchEntry(
        at,
        LaunchEntryKind.ENDED,
        {"outcome": Outcome.CANCELLED, "exit_code": None, "detail": detail},
    )
