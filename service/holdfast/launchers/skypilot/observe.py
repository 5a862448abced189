"""Derives an observation from SkyPilot's events of one managed job. Pure.

SkyPilot counts recoveries, but a recovery is not always a preemption. Its event RECOVERING gives the reason in three
ways:

    code USER_JOB_FAILURE   the program failed, and SkyPilot restarts it
    any other code          SkyPilot was informed that the nodes are failing
    no code                 capacity is lost; only the worker knows whether it was reclaimed

Without a code, SkyPilot may have given up healthy nodes: if the reason names an error of its controller, or if the
controller restarted just before. A program that exits with `Exit.PREEMPTED` left on notice, so it has not failed
either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from holdfast_worker.protocol.environment import Exit

from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.domain.jobs.observation import (
    Denial,
    LaunchResult,
    LaunchStatus,
    Observation,
    Placement,
)
from holdfast.domain.pricing.quotes import PriceQuery
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.models import ManagedJob, ManagedJobStatus

USER_FAILURE: Final = "USER_JOB_FAILURE"
RESUME_WITHIN: Final = timedelta(minutes=3)
"""Time within which a restarted controller gives up nodes of jobs in unknown state."""

MAX_TIME_DIFFERENCE: Final = timedelta(minutes=15)
"""Maximum difference between two reports of one moment, which SkyPilot makes seconds apart.
Time zones differ from UTC by at least an hour in practice."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_START: Final = "Job is starting"
_TRYING: Final = re.compile(r"Provisioning on (?P<cloud>\S+) in (?P<region>\S+)")
_LAUNCHED: Final = re.compile(r"Instances launched on (?P<cloud>\S+) in (?P<region>[^\s,]+)")
_GAVE_UP: Final = re.compile(r"Provision failed|Retrying provisioning|Job is in backoff")
_NEVER_RAN: Final = "SkyPilot released the nodes before the job ran on them"
_EXIT: Final = re.compile(r"exit codes? \[?(?P<codes>[\d, ]+)")
_GATE: Final = re.compile(r"/policy/[0-9a-f]{32}")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class PlacementPrice:
    """Total price of a placement's nodes, in micro-dollars per hour."""

    micros: int
    on_demand_micros: int
    source: str = ""
    """Source of the price; empty for none."""
    as_of: datetime | None = None
    is_estimate: bool = False
    node: PriceQuery | None = None
    """Properties of each node as far as SkyPilot reports them; None if SkyPilot was not queried."""


@dataclass(slots=True)
class _EventReader:
    """State of reading the events."""

    nodes: int
    price: PlacementPrice
    earlier: Mapping[int, PlacementPrice]
    job: ManagedJob | None
    trail: list[Placement] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)
    tries: list[tuple[datetime, str]] = field(default_factory=list)
    location: str = ""
    has_run: bool = False
    """Whether the job has run on the newest placement."""
    ending: LaunchResult | None = None
    since: datetime | None = None

    @property
    def is_up(self) -> bool:
        """Whether the newest placement is up."""
        return bool(self.trail) and self.trail[-1].lost_at is None

    def apply(self, event: EngineEvent) -> None:
        """Apply one event."""
        status = ManagedJobStatus(event.status)
        if match := _TRYING.match(event.reason):
            self.tries.append((event.at, f"{match['cloud']}/{match['region']}".lower()))
            self._end_unused_placement(event.at)
        elif match := _LAUNCHED.match(event.reason):
            self._end_unused_placement(event.at)
            self.location = f"{match['cloud']}/{match['region']}".lower()
            self._record_denials(self.location)
            if not self.is_up:
                self._begin_placement(event.at)
        elif _GAVE_UP.match(event.reason):
            self._record_denials(None)
            self._end_unused_placement(event.at)
        elif status is ManagedJobStatus.RUNNING and not (self.is_up and self.has_run):
            self._begin_run(event.at)
        elif status is ManagedJobStatus.RECOVERING and self.is_up:
            self._end_placement(event)
        elif status.is_terminal:
            self.ending = _ending(event, status)
            self.since = event.at

    def _record_denials(self, got: str | None) -> None:
        """Record denials: every location tried lacked capacity, except the one that has the nodes."""
        tries = list(self.tries)
        self.tries.clear()
        if got and any(place == got for _, place in tries):
            index = max(i for i, (_, place) in enumerate(tries) if place == got)
            del tries[index]
        self.denials += [Denial(at=at, zone=place, detail="no capacity") for at, place in tries]

    def _begin_run(self, at: datetime) -> None:
        self.ending = (
            None  # SkyPilot reports a cancel before it knows whether it takes effect in time.
        )
        if not self.is_up:  # SkyPilot kept the nodes of the previous placement, if there was one.
            self._begin_placement((self.trail[-1].lost_at if self.trail else None) or at)
        self.has_run = True
        self.since = at

    def _begin_placement(self, at: datetime) -> None:
        """Begin a placement with its nodes, which are billed from then on, even before the job runs."""
        before = self.trail[-1].lost_at if self.trail else None
        ready_at = max(at, before) if before else at
        price = self.earlier.get(len(self.trail) + 1, self.price)
        self.trail.append(
            Placement(
                ready_at=ready_at,
                zone=self.location or "unknown",
                nodes=self.nodes,
                micros_per_hour=price.micros,
                on_demand_micros_per_hour=price.on_demand_micros,
                simulated=False,
                price_source=price.source,
                price_as_of=price.as_of,
                is_price_estimate=price.is_estimate,
                cloud=(price.node.cloud or "") if price.node else "",
                instance_type=(price.node.instance_type or "") if price.node else "",
                is_spot=price.node.is_spot if price.node and price.node.cloud else None,
            )
        )
        self.has_run = False
        self.since = at

    def _end_unused_placement(self, at: datetime) -> None:
        """End a placement on which the job never ran, because SkyPilot searches for other nodes."""
        if self.is_up and not self.has_run and at > self.trail[-1].ready_at:
            gone = replace(self.trail[-1], lost_at=at, cause=Cause.NODE_FAILED, detail=_NEVER_RAN)
            self.trail[-1] = gone
            self.since = at

    def _end_placement(self, event: EngineEvent) -> None:
        assert self.since, "a placement that is up has a start"
        cause, detail = _cause(event, self.job, stood_at=self.since)
        lost_at = max(event.at, self.trail[-1].ready_at)
        self.trail[-1] = replace(self.trail[-1], lost_at=lost_at, cause=cause, detail=detail)
        self.ending = None
        self.since = event.at


def observe(
    events: Sequence[EngineEvent],
    row: ManagedJob | None,
    nodes: int,
    price: PlacementPrice,
    now: datetime,
    *,
    earlier: Mapping[int, PlacementPrice] = MappingProxyType({}),
) -> Observation:
    """Return the observation of a launch from its job's events, in the order of arrival.

        That order differs slightly from the order of their times: cluster events have whole seconds and seem to precede
    their causes. Sorting by time would let a late event change what was already observed.

    `price` is that of the newest placement, and of earlier ones missing in `earlier`, which is keyed by placement
    number. `row` is the job in the newest listing, None if missing; it knows the zone of the newest placement.
    """
    reader = _EventReader(nodes, price, earlier, row)
    for event in events:
        reader.apply(event)
    trail = list(reader.trail)
    if reader.ending and reader.is_up and trail[-1].ready_at > reader.ending.at:
        trail.pop()  # It came after the end, and a sweep terminates it.
    elif reader.is_up and row and row.location and row.region == trail[-1].zone:
        trail[-1] = replace(trail[-1], zone=row.location)
    status = LaunchStatus.UP if reader.is_up else LaunchStatus.WAITING
    if reader.ending:
        status = LaunchStatus.ENDED
    return Observation(
        status=status,
        since=reader.since or (events[0].at if events else now),
        placements=len(trail),
        recent_placements=tuple(trail),
        denials=tuple(reader.denials),
        result=reader.ending,
    )


def launched_at(events: Sequence[EngineEvent]) -> datetime | None:
    """Return when the newest nodes of a job were up; None before the first."""
    return max((event.at for event in events if _LAUNCHED.match(event.reason)), default=None)


def newest_location(events: Sequence[EngineEvent]) -> str:
    """Return the location of a job's newest nodes, as `cloud/region`; empty before the first."""
    found = [match for event in events if (match := _LAUNCHED.match(event.reason))]
    return f"{found[-1]['cloud']}/{found[-1]['region']}".lower() if found else ""


def is_running(events: Sequence[EngineEvent]) -> bool:
    """Whether events show the job as running on its newest nodes."""
    reader = _EventReader(0, PlacementPrice(0, 0), {}, None)
    for event in events:
        reader.apply(event)
    return reader.is_up and reader.has_run and not reader.ending


def priced_events(events: Sequence[EngineEvent], since: datetime) -> Sequence[EngineEvent]:
    """Drop nodes newer than `since`, whose price is not known yet.

    They are kept if the job has run on them or ended.
    """
    newest = next((e for e in reversed(events) if _LAUNCHED.match(e.reason)), None)
    if newest is None or newest.at <= since:
        return events
    later = events[events.index(newest) :]
    if any(
        e.status == ManagedJobStatus.RUNNING or ManagedJobStatus(e.status).is_terminal
        for e in later
    ):
        return events
    return [event for event in events if event is not newest]


def listed_events(events: Sequence[EngineEvent], row: ManagedJob | None) -> Sequence[EngineEvent]:
    """Drop a newest placement that the listing lacks: its zone would be a guess.

    Raises:
        LauncherUnreachable: events and listing have times of different zones and cannot be compared.
    """
    _check_zone(events, row)
    last = max(
        (e for e in events if e.status == ManagedJobStatus.RUNNING),
        key=lambda e: e.at,
        default=None,
    )
    if last is None or any(
        e.at >= last.at and ManagedJobStatus(e.status).is_terminal for e in events
    ):
        return events
    losses = [e.at for e in events if e.status == ManagedJobStatus.RECOVERING and e.at < last.at]
    since = row.up_since if row else None
    # SkyPilot dates the start back to when the nodes were up, before setup. It is always later than the previous loss.
    if since and since > max(losses, default=_EPOCH):
        return events
    lost = any(e.at > last.at and e.status == ManagedJobStatus.RECOVERING for e in events)
    return events if lost else [event for event in events if event is not last]


def unsettled_since(events: Sequence[EngineEvent], shown: Sequence[EngineEvent]) -> datetime | None:
    """Return the time of nodes that exist but are not shown yet; None without such nodes.

    They are hidden until their price or zone is known, or SkyPilot has not decided yet whether a failed program
    starts again on the nodes that it had.
    """
    hidden = [event.at for event in events if event not in shown]
    kept: datetime | None = None
    for event in shown:
        status = ManagedJobStatus(event.status)
        if status is ManagedJobStatus.RECOVERING and event.code == USER_FAILURE:
            kept = event.at
        elif (
            status is ManagedJobStatus.RUNNING
            or status.is_terminal
            or _TRYING.match(event.reason)
            or _LAUNCHED.match(event.reason)
        ):
            kept = None
    return min([*hidden, *([kept] if kept else [])], default=None)


def is_behind(row: ManagedJob, events: Sequence[EngineEvent]) -> bool:
    """Whether a row is older than the events: it lacks their newest placement or their end."""
    ended = any(ManagedJobStatus(event.status).is_terminal for event in events)
    return (ended and not row.status.is_terminal) or listed_events(events, row) is not events


def _check_zone(events: Sequence[EngineEvent], row: ManagedJob | None) -> None:
    """Raise if times in events and listing differ by zone.

    With SQLite, SkyPilot reports events in its server's zone.
    """
    starts = [event.at for event in events if event.reason == _START]
    if row is None or row.started_at is None or not starts:
        return
    ahead = min((at - row.started_at for at in starts), key=abs)
    if abs(ahead) > MAX_TIME_DIFFERENCE:
        raise LauncherUnreachable(
            f"SkyPilot's server reports times that are {round(ahead / timedelta(hours=1), 1):+g} h off; start it with TZ=UTC "
            "(jobs that already have such times can no longer be observed; end them with sky jobs cancel)"
        )


def exit_code_in(reason: str) -> int | None:
    """Extract the exit code from SkyPilot's message: the first one of all nodes that is not 0."""
    match = _EXIT.search(reason)
    if not match:
        return None
    codes = [int(code) for code in re.findall(r"\d{1,9}", match["codes"])]
    return next((code for code in codes if code), codes[0] if codes else None)


def strip_ansi(text: str) -> str:
    """Return SkyPilot's message as one line, without colors and without the gate's secret."""
    return " ".join(_GATE.sub("/policy/...", _COLOURS.sub("", text)).split())


def _cause(event: EngineEvent, row: ManagedJob | None, *, stood_at: datetime) -> tuple[Cause, str]:
    if event.code == USER_FAILURE:
        code = exit_code_in(event.reason)
        if code == Exit.PREEMPTED:
            return Cause.NODE_FAILED, "the worker saved and exited after a termination notice"
        with_code = f" with exit code {code}" if code is not None else ""
        return Cause.USER_ERROR, f"the program failed{with_code}; SkyPilot restarts it"
    if event.code:
        return Cause.NODE_FAILED, f"{event.code}: {strip_ansi(event.reason)}"
    if event.reason.startswith("Unexpected controller error"):
        return Cause.LAUNCHER_RESTARTED, strip_ansi(event.reason)
    started = row.controller_started_at if row else None
    # A controller that started before the placement has observed all of it and knows its state.
    if started and stood_at < started <= event.at <= started + RESUME_WITHIN:
        return (
            Cause.LAUNCHER_RESTARTED,
            "SkyPilot's controller restarted and released the nodes",
        )
    return Cause.NODE_FAILED, "the nodes were lost"


def _ending(event: EngineEvent, status: ManagedJobStatus) -> LaunchResult:
    reason = strip_ansi(event.reason)
    match status:
        case ManagedJobStatus.SUCCEEDED:
            return LaunchResult(at=event.at, outcome=Outcome.SUCCEEDED, exit_code=0)
        case ManagedJobStatus.CANCELLED:
            return LaunchResult(
                at=event.at, outcome=Outcome.CANCELLED, detail="cancelled on request"
            )
        case ManagedJobStatus.FAILED | ManagedJobStatus.FAILED_SETUP:
            where = (
                "setup failed" if status is ManagedJobStatus.FAILED_SETUP else "the program failed"
            )
            code = exit_code_in(reason)
            detail = f"{where} with exit code {code}" if code is not None else f"{where}: {reason}"
            return LaunchResult(at=event.at, outcome=Outcome.FAILED, exit_code=code, detail=detail)
        case _:
            detail = f"SkyPilot ended the job ({status}): {reason}"
            return LaunchResult(at=event.at, outcome=Outcome.FAILED, detail=detail)
