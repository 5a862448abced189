"""SkyPilot's events of one managed job become a sighting. Pure: the same events tell the same story.

SkyPilot counts recoveries, and a recovery is not a preemption. Its event RECOVERING says why in three ways:

    code USER_JOB_FAILURE      the program failed, and SkyPilot starts it again
    code of another kind       somebody told SkyPilot that the nodes are failing
    no code                    capacity is gone; only the worker knows whether it was reclaimed
        ... and the reason tells of an error of its own controller, or the controller was started anew just before
                               SkyPilot gave up nodes that may have been sound

A program that leaves with `Exit.PREEMPTED` was told to go: that is no failure of the program either.
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
"""How soon a controller that was started anew gives up the nodes of jobs that it cannot judge."""

ONE_MOMENT: Final = timedelta(minutes=15)
"""How far SkyPilot may tell one moment twice: it takes seconds over it. Zones differ by an hour from UTC at least."""

_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_START: Final = "Job is starting"
_TRYING: Final = re.compile(r"Provisioning on (?P<cloud>\S+) in (?P<region>\S+)")
_LAUNCHED: Final = re.compile(r"Instances launched on (?P<cloud>\S+) in (?P<region>[^\s,]+)")
_GAVE_UP: Final = re.compile(r"Provision failed|Retrying provisioning|Job is in backoff")
_NEVER_RAN: Final = "SkyPilot gave the nodes up before the job ran on them"
_EXIT: Final = re.compile(r"exit codes? \[?(?P<codes>[\d, ]+)")
_GATE: Final = re.compile(r"/policy/[0-9a-f]{32}")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Price:
    """What the nodes of one placement cost together, in micro-dollars an hour."""

    micros: int
    on_demand_micros: int
    source: str = ""
    """Who told it; empty for none."""
    as_of: datetime | None = None
    is_estimate: bool = False
    node: PriceQuery | None = None
    """What each of the nodes is, as far as SkyPilot says; None where it was not asked."""


@dataclass(slots=True)
class _Reader:
    """Where one reading of the events stands."""

    nodes: int
    price: Price
    earlier: Mapping[int, Price]
    row: ManagedJob | None
    trail: list[Placement] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)
    tries: list[tuple[datetime, str]] = field(default_factory=list)
    place: str = ""
    has_run: bool = False
    """Whether the job has run on the newest placement."""
    ending: LaunchResult | None = None
    since: datetime | None = None

    @property
    def stands(self) -> bool:
        """Whether the newest placement does."""
        return bool(self.trail) and self.trail[-1].lost_at is None

    def read(self, event: EngineEvent) -> None:
        """One more event."""
        status = ManagedJobStatus(event.status)
        if match := _TRYING.match(event.reason):
            self.tries.append((event.at, f"{match['cloud']}/{match['region']}".lower()))
            self._give_up(event.at)
        elif match := _LAUNCHED.match(event.reason):
            self._give_up(event.at)
            self.place = f"{match['cloud']}/{match['region']}".lower()
            self._settle_tries(self.place)
            if not self.stands:
                self._stand_up(event.at)
        elif _GAVE_UP.match(event.reason):
            self._settle_tries(None)
            self._give_up(event.at)
        elif status is ManagedJobStatus.RUNNING and not (self.stands and self.has_run):
            self._run(event.at)
        elif status is ManagedJobStatus.RECOVERING and self.stands:
            self._lose(event)
        elif status.is_over:
            self.ending = _ending(event, status)
            self.since = event.at

    def _settle_tries(self, got: str | None) -> None:
        """All places that were tried had no room, but the one where the machines are."""
        tries = list(self.tries)
        self.tries.clear()
        if got and any(place == got for _, place in tries):
            index = max(i for i, (_, place) in enumerate(tries) if place == got)
            del tries[index]
        self.denials += [Denial(at=at, zone=place, detail="no room there") for at, place in tries]

    def _run(self, at: datetime) -> None:
        self.ending = None  # SkyPilot tells of a cancel before it knows whether it comes in time.
        if not self.stands:  # It kept the machines of the placement before, if there was one.
            self._stand_up((self.trail[-1].lost_at if self.trail else None) or at)
        self.has_run = True
        self.since = at

    def _stand_up(self, at: datetime) -> None:
        """Begin a placement with its machines, which are billed from then on, whether the job runs or not."""
        before = self.trail[-1].lost_at if self.trail else None
        ready_at = max(at, before) if before else at
        price = self.earlier.get(len(self.trail) + 1, self.price)
        self.trail.append(
            Placement(
                ready_at=ready_at,
                zone=self.place or "unknown",
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

    def _give_up(self, at: datetime) -> None:
        """End a placement on which the job never ran: SkyPilot looks for other machines."""
        if self.stands and not self.has_run and at > self.trail[-1].ready_at:
            gone = replace(self.trail[-1], lost_at=at, cause=Cause.NODE_FAILED, detail=_NEVER_RAN)
            self.trail[-1] = gone
            self.since = at

    def _lose(self, event: EngineEvent) -> None:
        assert self.since, "it stands since then"
        cause, detail = _cause(event, self.row, stood_at=self.since)
        lost_at = max(event.at, self.trail[-1].ready_at)
        self.trail[-1] = replace(self.trail[-1], lost_at=lost_at, cause=cause, detail=detail)
        self.ending = None
        self.since = event.at


def observe(
    events: Sequence[EngineEvent],
    row: ManagedJob | None,
    nodes: int,
    price: Price,
    now: datetime,
    *,
    earlier: Mapping[int, Price] = MappingProxyType({}),
) -> Observation:
    """What stands under a launch whose job has these events, in the order in which they became known.

    That is not quite the order of their times: those of clusters have whole seconds, and seem to come before what they
    follow. Were they sorted by time, one that comes late would change what was told before it.

    `price` is that of the newest placement, and of those before it whose own is not in `earlier`, by their numbers.
    `row` is the job in the newest listing, None if it is in none; it knows the zone of the newest placement.
    """
    reader = _Reader(nodes, price, earlier, row)
    for event in events:
        reader.read(event)
    trail = list(reader.trail)
    if reader.ending and reader.stands and trail[-1].ready_at > reader.ending.at:
        trail.pop()  # It came after the end, and a sweep removes it.
    elif reader.stands and row and row.place and row.region == trail[-1].zone:
        trail[-1] = replace(trail[-1], zone=row.place)
    standing = LaunchStatus.UP if reader.stands else LaunchStatus.WAITING
    if reader.ending:
        standing = LaunchStatus.ENDED
    return Observation(
        standing=standing,
        since=reader.since or (events[0].at if events else now),
        placements=len(trail),
        trail=tuple(trail),
        denials=tuple(reader.denials),
        ending=reader.ending,
    )


def launched_at(events: Sequence[EngineEvent]) -> datetime | None:
    """When the newest machines of a job stood; None where there were none yet."""
    return max((event.at for event in events if _LAUNCHED.match(event.reason)), default=None)


def place_of(events: Sequence[EngineEvent]) -> str:
    """Where the newest machines of a job stood, as `cloud/region`; empty where there were none yet."""
    found = [match for event in events if (match := _LAUNCHED.match(event.reason))]
    return f"{found[-1]['cloud']}/{found[-1]['region']}".lower() if found else ""


def is_running(events: Sequence[EngineEvent]) -> bool:
    """Whether a job runs on its newest machines, as far as was told."""
    reader = _Reader(0, Price(0, 0), {}, None)
    for event in events:
        reader.read(event)
    return reader.stands and reader.has_run and not reader.ending


def settled(events: Sequence[EngineEvent], since: datetime) -> Sequence[EngineEvent]:
    """The events without machines that came after `since`, unless the job has run on them or ended: their price comes first."""
    newest = next((e for e in reversed(events) if _LAUNCHED.match(e.reason)), None)
    if newest is None or newest.at <= since:
        return events
    later = events[events.index(newest) :]
    if any(
        e.status == ManagedJobStatus.RUNNING or ManagedJobStatus(e.status).is_over for e in later
    ):
        return events
    return [event for event in events if event is not newest]


def listed(events: Sequence[EngineEvent], row: ManagedJob | None) -> Sequence[EngineEvent]:
    """The events without a newest placement that the listing does not know yet: its zone would be a guess.

    Raises:
        LauncherUnreachable: the two cannot be compared: the events have times of another zone.
    """
    _check_zone(events, row)
    last = max(
        (e for e in events if e.status == ManagedJobStatus.RUNNING),
        key=lambda e: e.at,
        default=None,
    )
    if last is None or any(e.at >= last.at and ManagedJobStatus(e.status).is_over for e in events):
        return events
    losses = [e.at for e in events if e.status == ManagedJobStatus.RECOVERING and e.at < last.at]
    since = row.stands_since if row else None
    # SkyPilot dates it back to when the nodes were there, before setup: at any rate it is after the loss before it.
    if since and since > max(losses, default=_LONG_AGO):
        return events
    lost = any(e.at > last.at and e.status == ManagedJobStatus.RECOVERING for e in events)
    return events if lost else [event for event in events if event is not last]


def is_behind(row: ManagedJob, events: Sequence[EngineEvent]) -> bool:
    """Whether a row is older than the events: it lacks their newest placement, or their end."""
    ended = any(ManagedJobStatus(event.status).is_over for event in events)
    return (ended and not row.status.is_over) or listed(events, row) is not events


def _check_zone(events: Sequence[EngineEvent], row: ManagedJob | None) -> None:
    """Go on if times in events and in listings are of one zone. On SQLite, SkyPilot tells events in that of its server."""
    starts = [event.at for event in events if event.reason == _START]
    if row is None or row.began_at is None or not starts:
        return
    ahead = min((at - row.began_at for at in starts), key=abs)
    if abs(ahead) > ONE_MOMENT:
        raise LauncherUnreachable(
            f"SkyPilot's server tells times that are {round(ahead / timedelta(hours=1), 1):+g} h off; start it with TZ=UTC "
            "(a job that has such times is not understood any more: sky jobs cancel ends it)"
        )


def exit_code_in(reason: str) -> int | None:
    """The exit code that SkyPilot tells in words; of several nodes the first that is not 0."""
    match = _EXIT.search(reason)
    if not match:
        return None
    codes = [int(code) for code in re.findall(r"\d{1,9}", match["codes"])]
    return next((code for code in codes if code), codes[0] if codes else None)


def strip_ansi(text: str) -> str:
    """SkyPilot's words without colours and without the gate's secret, in one line."""
    return " ".join(_GATE.sub("/policy/...", _COLOURS.sub("", text)).split())


def _cause(event: EngineEvent, row: ManagedJob | None, *, stood_at: datetime) -> tuple[Cause, str]:
    if event.code == USER_FAILURE:
        code = exit_code_in(event.reason)
        if code == Exit.PREEMPTED:
            return Cause.NODE_FAILED, "the worker left on notice with its work saved"
        told = f" with exit code {code}" if code is not None else ""
        return Cause.USER_ERROR, f"the program failed{told}; SkyPilot starts it again"
    if event.code:
        return Cause.NODE_FAILED, f"{event.code}: {strip_ansi(event.reason)}"
    if event.reason.startswith("Unexpected controller error"):
        return Cause.LAUNCHER_RESTARTED, strip_ansi(event.reason)
    started = row.controller_started_at if row else None
    # One that is older than the placement has seen all of it, and can judge it.
    if started and stood_at < started <= event.at <= started + RESUME_WITHIN:
        return (
            Cause.LAUNCHER_RESTARTED,
            "SkyPilot's controller was started anew and gave the nodes up",
        )
    return Cause.NODE_FAILED, "the nodes are gone"


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
            detail = f"SkyPilot gave up ({status}): {reason}"
            return LaunchResult(at=event.at, outcome=Outcome.FAILED, detail=detail)
