"""The launcher of jobs with node groups: one managed job for each group, launched once.

A launch has a row of its own in the launch store, which records its cancel, and one row for each group. A group has a
launch key, a token and a managed job like a launch without groups. This launcher combines them: `group_history` has
the placements, and `group_outcome` the end. A job without groups is passed to the launcher of managed jobs as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot.group_history import (
    LEADER,
    GroupEvent,
    GroupEventKind,
    GroupShape,
    LaunchHistory,
    group_events,
    new_events,
)
from holdfast.launchers.skypilot.group_outcome import GroupPlan, cannot_succeed, plan_groups
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.launcher import ManagedObservation, SkyPilotLauncher
from holdfast.launchers.skypilot.naming import group_key, job_of
from holdfast.ports import Clock, EngineInfo, Launch, LogSource, OrphanedResource

T = TypeVar("T")

SETTLING: Final = timedelta(seconds=5)
"""Age from which an event is recorded: the groups are read one after the other.
A lower value may record an event of one group before an earlier one of another, whose time is then that of the later; a
higher value delays all observations."""
MAX_UNSETTLED: Final = timedelta(minutes=2)
"""How long events wait for what SkyPilot has not reported of an earlier moment.
A lower value bills nodes from a later time; a higher value delays observations if SkyPilot never reports it."""


class NodeGroupLauncher:
    """Launches of one service on SkyPilot, with node groups or without."""

    saves_on_cancel = False
    """As for single managed jobs."""

    def __init__(
        self,
        managed: SkyPilotLauncher,
        *,
        memory: LaunchStore,
        groups_of: Callable[[str], Sequence[GroupShape]],
        clock: Clock,
    ) -> None:
        self._managed = managed
        self._store = memory
        self._groups_of = groups_of
        self._clock = clock

    async def submit(self, launch: Launch) -> None:
        """Request a managed job for each group, unless it was requested or cancelled before.

        Raises:
            LaunchRefused: the task of a group can never start, and nothing of the launch runs.
            LauncherUnreachable: the result is unknown; observe, then submit again.
        """
        if not launch.group_tasks:
            return await self._managed.submit(launch)
        row = self._store.open(launch.key, launch.job_id, self._clock.now())
        if row.cancelled_at:
            return None
        self._managed.log_mirror.register(launch.key, launch.first_attempt)
        for number, (name, task) in enumerate(launch.group_tasks.items()):
            key = group_key(launch.key, number)
            one = replace(launch, key=key, task=task, group_tasks={}, first_attempt=1)
            try:
                await self._managed.submit(one)
            except LaunchRefused as refusal:
                await self._refuse(launch, number, f"group {name}: {refusal.detail}", refusal)
        return None

    async def observe(self, key: str) -> Observation:
        """Return the current observation of a launch, and end groups that have to end.

        Raises:
            LauncherUnreachable: SkyPilot did not respond, or its response cannot be interpreted.
        """
        groups = self._groups_of(job_of(key))
        if not groups:
            return await self._managed.observe(key)
        row = self._store.find(key)
        if row is None:
            return Observation(status=LaunchStatus.ABSENT, since=self._clock.now())
        keys = self._keys(key, groups)
        parts = await _all(map(self._managed.observe_managed, keys))
        seen = [part.observation for part in parts]
        if unknown := [one for one in seen if one.status is LaunchStatus.UNKNOWN]:
            left = tuple(name for one in unknown for name in one.leftovers)
            return replace(unknown[0], leftovers=left)
        history = self._record(key, groups, parts)
        plan = plan_groups(
            groups, seen, history, self._clock.now(), is_cancelled=row.cancelled_at is not None
        )
        await self._cancel_all(keys[number] for number in plan.cancels)
        return self._combined(seen, history, plan)

    async def cancel(self, key: str) -> None:
        """Request the end of all groups; those that were not submitted will never start.

        Raises:
            LauncherUnreachable: it is unknown whether SkyPilot received all requests.
        """
        groups = self._groups_of(job_of(key))
        if not groups:
            return await self._managed.cancel(key)
        # First, so that a submission in progress requests no other group.
        self._store.tombstone(key, job_of(key), self._clock.now())
        return await self._cancel_all(self._keys(key, groups))

    async def logs(self, key: str) -> Sequence[LogSource]:
        """List the logs of all groups. SkyPilot merges the output of a group's nodes into one."""
        groups = self._groups_of(job_of(key))
        if not groups:
            return await self._managed.logs(key)
        found, first = list[LogSource](), 0
        for number, (group, name) in enumerate(zip(self._keys(key, groups), groups, strict=True)):
            sizes: dict[int, int] = {}
            for source in await self._managed.logs(group):
                if (attempt := self._attempt(key, groups, number, source.attempt)) is not None:
                    sizes[attempt] = sizes.get(attempt, 0) + source.size_bytes
            found += [
                LogSource(attempt=attempt, node=first, rank=None, size_bytes=size)
                for attempt, size in sizes.items()
            ]
            first += name.nodes
        return sorted(found, key=lambda source: (source.attempt, source.node))

    async def copy_logs(self, key: str) -> None:
        """Copy new output of all groups; SkyPilot keeps it only as long as the nodes."""
        groups = self._groups_of(job_of(key))
        keys = self._keys(key, groups) if groups else [key]
        await _all(map(self._managed.copy_logs, keys))

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """Read at most `limit` bytes of a log from `offset`; empty at its end.

        A group that was replaced within an attempt has several copies, which follow each other.
        """
        groups = self._groups_of(job_of(key))
        if not groups:
            return self._managed.read_log(key, source, offset, limit)
        firsts = [sum(shape.nodes for shape in groups[:n]) for n in range(len(groups))]
        if source.node not in firsts:
            return b""
        number = firsts.index(source.node)
        group = group_key(key, number)
        for copy in self._managed.log_mirror.copies(group):
            if self._attempt(key, groups, number, copy.attempt) != source.attempt:
                continue
            if offset < copy.size_bytes:
                return self._managed.read_log(group, copy, offset, limit)
            offset -= copy.size_bytes
        return b""

    def keys_with_files(self) -> Sequence[str]:
        """Return the keys of launches with copied logs."""
        return self._managed.keys_with_files()

    def discard(self, key: str) -> None:
        """Delete the copied logs of an ended launch."""
        self._managed.discard(key)

    @property
    def shared_resources(self) -> str:
        """Describe what users' jobs share in the clouds."""
        return self._managed.shared_resources

    @property
    def strangers(self) -> Sequence[OrphanedResource] | None:
        """Jobs and clusters that the latest sweep left alone; None before the first sweep."""
        return self._managed.strangers

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        """Stop this service's orphaned jobs and clusters, and delete unused copies of files.

        Raises:
            LauncherUnreachable: SkyPilot's state is unknown.
        """
        return await self._managed.sweep(is_live)

    async def engine_info(self) -> EngineInfo:
        """Return the state of SkyPilot's server.

        Raises:
            LauncherUnreachable: the server does not respond, or its gate blocks all launches.
        """
        return await self._managed.engine_info()

    def _keys(self, key: str, groups: Sequence[GroupShape]) -> list[str]:
        return [group_key(key, number) for number in range(len(groups))]

    async def _cancel_all(self, keys: Iterable[str]) -> None:
        """Cancel groups, all of them even if SkyPilot does not answer about one."""
        await _all(map(self._managed.cancel, keys))

    async def _refuse(
        self, launch: Launch, number: int, detail: str, refusal: LaunchRefused
    ) -> None:
        """End a launch of which SkyPilot has refused a group.

        Raises:
            LaunchRefused: nothing of it was ever requested.
            LauncherUnreachable: another group may run, and its end is observed first.
        """
        event = GroupEvent(
            at=self._clock.now(), kind=GroupEventKind.REFUSED, group=number, number=1, detail=refusal.detail
        )  # fmt: skip
        self._store.append_events(launch.key, [event.encode()])
        others = [group_key(launch.key, n) for n in range(len(launch.group_tasks)) if n != number]
        await self._cancel_all(others)
        rows = [self._store.find(key) for key in others]
        if any(row is not None and row.posted_at is not None for row in rows):
            raise LauncherUnreachable(f"{detail}; ending the other groups first") from refusal
        raise LaunchRefused(detail) from refusal

    def _record(
        self, key: str, groups: Sequence[GroupShape], parts: Sequence[ManagedObservation]
    ) -> LaunchHistory:
        """Record what is new in the observations of all groups, and return the whole history."""
        known = self._events(self._store.events(key))
        seen = [part.observation for part in parts]
        reported = [
            event
            for number, (shape, one) in enumerate(zip(groups, seen, strict=True))
            for event in group_events(shape, number, one)
        ]
        fresh = new_events(known, reported, self._settled_until(parts, reported))
        history = LaunchHistory.of(groups, [*known, *fresh])
        if not history.is_abandoned and cannot_succeed(seen, history):
            at = self._clock.now()
            fresh.append(GroupEvent(at=at, kind=GroupEventKind.ABANDONED, group=LEADER, number=1))
        if not fresh:
            return history
        rows = self._store.append_events(key, [event.encode() for event in fresh])
        return LaunchHistory.of(groups, self._events(rows))

    def _settled_until(
        self, parts: Sequence[ManagedObservation], reported: Iterable[GroupEvent]
    ) -> datetime | None:
        """The time until which all events of all groups are reported; None: nothing follows."""
        now = self._clock.now()
        if all(part.observation.result for part in parts):
            return None
        # If SkyPilot's clock is ahead of ours, events that are too new by ours would wait for as long.
        is_ahead = any(event.at > now for event in reported)
        open_since = [
            part.unsettled_since
            for part in parts
            if part.unsettled_since and now - part.unsettled_since < MAX_UNSETTLED
        ]
        return min([*([] if is_ahead else [now - SETTLING]), *open_since], default=None)

    def _events(self, rows: Iterable[EngineEvent]) -> list[GroupEvent]:
        return [GroupEvent.decode(row) for row in rows]

    def _combined(
        self, seen: Sequence[Observation], history: LaunchHistory, plan: GroupPlan
    ) -> Observation:
        is_absent = [one.status is LaunchStatus.ABSENT for one in seen]
        if all(is_absent) and not plan.is_ending:
            return Observation(status=LaunchStatus.ABSENT, since=self._clock.now())
        since = max(one.since for one in seen)
        if plan.status is None:
            status = LaunchStatus.UP if history.is_up else LaunchStatus.WAITING
        else:
            status = plan.status
        return Observation(
            status=status,
            since=plan.result.at if plan.result else since,
            placements=len(history.placements),
            recent_placements=tuple(history.placements),
            denials=tuple(history.denials),
            result=plan.result,
            is_partial=any(is_absent) and not plan.is_ending,
            leftovers=tuple(name for one in seen for name in one.leftovers) if plan.status else (),
        )

    def _attempt(self, key: str, groups: Sequence[GroupShape], group: int, stay: int) -> int | None:
        """The attempt in which a stay of a group began; None if it is not recorded yet."""
        history = LaunchHistory.of(groups, self._events(self._store.events(key)))
        placement = history.placement_of.get((group, stay))
        if placement is None:
            return None
        return self._managed.log_mirror.first_attempt(key) + placement - 1


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of concurrent calls once all have ended; raise the first error then."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
