"""The local launcher: implements the launcher port on launch directories."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from holdfast_worker.protocol.environment import WAITS_FILE

from holdfast.clock import SystemClock
from holdfast.domain.events import Outcome
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation
from holdfast.domain.planning.recorded_places import PlaceHistory
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LauncherUnreachable, NotPossibleNow
from holdfast.host.untrusted_files import opened_file
from holdfast.launchers.local import event_log, launch_dir
from holdfast.launchers.local.event_log import LaunchEntry, LaunchEntryKind
from holdfast.launchers.local.launch_dir import LaunchDir, NodeDir, PreemptRequest
from holdfast.launchers.local.process_cleanup import kill_marked_processes
from holdfast.launchers.local.sandbox import Sandboxes
from holdfast.launchers.local.submission import submit
from holdfast.ports import (
    Clock,
    Launch,
    LogSource,
    NodeOffer,
    OrphanedResource,
    RecordedPlaces,
)


class LocalLauncher:
    """Launcher for one home directory.

    Any number of instances, in any process, agree on the state.
    """

    saves_on_cancel: Final = True
    """A cancelled program receives a signal and time to save before the kill."""

    def __init__(
        self,
        home: Path,
        climate: MarketParameters,
        clock: Clock = SystemClock(),
        sandboxes: Sandboxes | None = None,
        restart_s: float = 0,
    ) -> None:
        """`sandboxes` confines users' jobs without rights to this machine; None refuses them.

        `restart_s` is the pause before a failed program is restarted.
        """
        self._home = home
        self._sandboxes = sandboxes
        self._climate = climate
        self._history = PlaceHistory(climate.recording, climate) if climate.recording else None
        self._clock = clock
        self._restart_s = restart_s
        self._ended: set[str] = set()
        """Launches that have ended, so that a sweep does not read their logs again."""
        self._strangers: tuple[OrphanedResource, ...] | None = None

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled; it has started when this returns."""
        folder = self._folder(launch.key)
        terms = (self._climate, self._home, self._sandboxes)
        await asyncio.to_thread(submit, folder, launch, *terms, restart_s=self._restart_s)

    async def observe(self, key: str) -> Observation:
        """Return the current observation of `key`."""
        return await asyncio.to_thread(self._observe, key)

    async def cancel(self, key: str) -> None:
        """Request the end of `key`; a launch that was not submitted will never start."""
        await asyncio.to_thread(self._folder(key).tombstone, self._clock.now())

    def node_offers(self, place: str) -> Sequence[NodeOffer]:
        """Return the prices in all zones of the simulated market, whatever place the job names."""
        del place
        market = self._climate
        return [
            NodeOffer(
                place=f"{Engine.LOCAL}/{zone}",
                spot_micros=market.spot_micros,
                on_demand_micros=market.on_demand_micros,
            )
            for zone in market.zones
        ]

    async def preempt(self, key: str, *, node: int | None, notice_s: float | None) -> None:
        """Preempt one node (None: the last) of the running placement, which ends after this returns.

        Raises:
            NotPossibleNow: no placement is running under this key, or it has no such node.
        """
        await asyncio.to_thread(self._preempt, key, node, notice_s)

    async def replaces_alone(self, key: str, *, node: int | None) -> bool:
        """Whether the other nodes would wait for the replacement of a node (None: the last)."""
        return await asyncio.to_thread(self._replaces_alone, key, node)

    def recorded_market(self, at: datetime, *, nodes: int = 1) -> RecordedPlaces | None:
        """Return the market at a moment for launches of `nodes` nodes; None if it is no recording."""
        if self._history is None:
            return None
        return RecordedPlaces(tick_s=self._history.tick_s, places=self._history.states(at, nodes))

    async def logs(self, key: str) -> Sequence[LogSource]:
        """List the logs of all attempts of `key`, by attempt, node and rank."""
        return await asyncio.to_thread(self._logs, key)

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """Read at most `limit` bytes of a log from `offset`; empty at its end and for a missing log."""
        node = self._folder(key).node(source.attempt, source.node)
        path = _log_file(node, source.rank, is_hosted=source.is_hosted)
        try:
            with opened_file(node.path, path.relative_to(node.path).parts) as log:
                log.seek(offset)
                return log.read(limit)
        except (FileNotFoundError, NotADirectoryError):
            return b""

    def keys_with_files(self) -> Sequence[str]:
        """Return the keys of launches that have files besides their record."""
        folders = (LaunchDir(path) for path in (self._home / "launches").glob("*-*/"))
        return sorted(folder.path.name for folder in folders if folder.has_files())

    def discard(self, key: str) -> None:
        """Delete all files of an ended launch except its record; other launches keep their files.

        Raises:
            OSError: some files remain; call again later.
        """
        folder = self._folder(key)
        if (holder := launch_dir.acquire_lock(folder.lock)) is None:
            return
        try:
            lines = folder.history.read()
            if not event_log.has_started(lines):
                folder.tombstone(self._clock.now())
            if not event_log.has_started(lines) or event_log.has_ended(lines):
                folder.discard_files()
        finally:
            os.close(holder)

    @property
    def shared_resources(self) -> str:
        """Describe what users' jobs share on this machine; empty if they are refused."""
        return self._sandboxes.shared_resources if self._sandboxes else ""

    @property
    def strangers(self) -> Sequence[OrphanedResource] | None:
        """Launches found by the latest sweep but missing from the database; None before the first."""
        return self._strangers

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        """Find launches missing from the database; supervisors clean up after known launches."""
        running = await asyncio.to_thread(lambda: [*self._running()])
        self._strangers = tuple(orphan for orphan in running if is_live(orphan.key or "") is None)
        return ()

    def _running(self) -> Iterator[OrphanedResource]:
        """Yield all launches whose supervisor is alive."""
        for path in sorted((self._home / "launches").glob("*/history.jsonl")):
            key = path.parent.name
            if key in self._ended:
                continue
            folder = self._folder(key)
            lines = folder.history.read()
            if event_log.has_ended(lines):
                self._ended.add(key)
            elif event_log.has_started(lines) and not launch_dir.is_unlocked(folder.lock):
                what = f"local launch {key}"
                yield OrphanedResource(key=key, description=what, since=lines[0].at, stopped=False)

    def _folder(self, key: str) -> LaunchDir:
        assert key not in {"", ".", ".."}, "keys are generated by Holdfast"
        assert "/" not in key, "keys are generated by Holdfast"
        return LaunchDir(self._home / "launches" / key)

    def _observe(self, key: str) -> Observation:
        folder = self._folder(key)
        if not folder.path.exists():
            return Observation(status=LaunchStatus.ABSENT, since=self._clock.now())
        try:
            return self._observe_dir(folder)
        except OSError as error:
            raise LauncherUnreachable(f"cannot read the launch directory: {error}") from error

    def _observe_dir(self, folder: LaunchDir) -> Observation:
        lines = folder.history.read()
        if event_log.has_ended(lines):
            return event_log.observe(lines)
        if (holder := launch_dir.acquire_lock(folder.lock)) is None:
            # The launch has a supervisor, or a submitter that is starting one.
            lines = folder.history.read()
            now = self._clock.now()
            return (
                event_log.observe(lines)
                if lines
                else Observation(status=LaunchStatus.WAITING, since=now)
            )
        try:
            return self._observe_unsupervised(folder)
        finally:
            os.close(holder)

    def _observe_unsupervised(self, folder: LaunchDir) -> Observation:
        """Observe a launch without a supervisor; the caller holds its lock."""
        lines = folder.history.read()
        cancelled_at = folder.cancelled_at()
        if event_log.has_ended(lines):
            return event_log.observe(lines)
        if event_log.has_started(lines):
            kill_marked_processes(folder)
            folder.history.append(
                _final_entry(self._clock.now(), cancelled=cancelled_at is not None)
            )
            return event_log.observe(folder.history.read())
        if cancelled_at is not None:
            ending = LaunchResult(
                at=cancelled_at, outcome=Outcome.CANCELLED, detail="cancelled before it began"
            )
            return Observation(status=LaunchStatus.ENDED, since=cancelled_at, result=ending)
        return Observation(status=LaunchStatus.ABSENT, since=self._clock.now())

    def _preempt(self, key: str, node: int | None, notice_s: float | None) -> None:
        seen = self._observe(key)
        if seen.status is not LaunchStatus.UP:
            raise NotPossibleNow(f"{key} has no running nodes; its status is {seen.status}")
        nodes = seen.recent_placements[-1].nodes
        chosen = nodes - 1 if node is None else node
        if not 0 <= chosen < nodes:
            raise NotPossibleNow(f"{key} has no node {chosen}; its nodes are 0 to {nodes - 1}")
        self._folder(key).request_preemption(PreemptRequest(seen.placements, chosen, notice_s))

    def _replaces_alone(self, key: str, node: int | None) -> bool:
        """Whether the supervisor would replace a node alone, as in `NodeReplacements.can_replace`."""
        seen = self._observe(key)
        if seen.status is not LaunchStatus.UP or seen.recent_placements[-1].nodes == 1 or node == 0:
            return False
        first = self._folder(key).node(seen.placements, 0)
        return (first.run / WAITS_FILE).exists()

    def _logs(self, key: str) -> list[LogSource]:
        folder = self._folder(key)
        sources = []
        for attempt, node in folder.nodes():
            place = folder.node(attempt, node)
            own = [(rank, False) for rank in (None, *place.ranks())]
            for rank, is_hosted in (*own, *((rank, True) for rank in place.hosted_ranks())):
                path = _log_file(place, rank, is_hosted=is_hosted)
                sources.append(
                    LogSource(
                        attempt=attempt,
                        node=node,
                        rank=rank,
                        size_bytes=path.lstat().st_size if path.exists() else 0,
                        is_hosted=is_hosted,
                    )
                )
        return sources


def _log_file(node: NodeDir, rank: int | None, *, is_hosted: bool) -> Path:
    if rank is None:
        return node.log
    return node.hosted_rank_log(rank) if is_hosted else node.rank_log(rank)


def _final_entry(at: datetime, *, cancelled: bool) -> LaunchEntry:
    """Return the last entry of a launch without supervisor: cancelled or forgotten."""
    if not cancelled:
        return LaunchEntry(at, LaunchEntryKind.FORGOTTEN)
    detail = "cancelled on request"
    return LaunchEntry(
        at,
        LaunchEntryKind.ENDED,
        {"outcome": Outcome.CANCELLED, "exit_code": None, "detail": detail},
    )
