"""The course of one launch, and the launcher behavior it depends on.

Pure: the same order, reclaims and market give the same timeline at any time. The defaults are those of the local
launcher; SkyPilot's differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from holdfast_worker.protocol.environment import NO_RETRY, Exit
from holdfast_worker.protocol.reports import Json, Report

from holdfast.domain.events import Cause, Outcome
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.jobs.observation import Denial, LaunchResult, Placement
from holdfast.domain.simulation.spot_market import SpotMarket
from holdfast.launchers.simulated.program import (
    AttemptConditions,
    SimulatedAttempt,
    SimulatedCheckpoint,
    SimulatedProgram,
    simulate_attempt,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherBehavior:
    """Behavior of the simulated launcher apart from its market."""

    saves_on_cancel: bool = True
    """Whether a cancelled program gets time to save; otherwise its nodes end at once."""
    reports_reclaims: bool = True
    """Whether the launcher reports preemptions separately from node failures."""
    restart_on: frozenset[int] = frozenset()
    """Exit codes after which a program is restarted on the same nodes without a limit."""
    on_demand_nodes: int = 0
    """On-demand nodes of each larger placement; the earlier are spot."""


LIKE_SKYPILOT: Final = LauncherBehavior(
    saves_on_cancel=False, reports_reclaims=False, restart_on=frozenset({1, 75})
)

CANCEL_NOTICE_S: Final = 30.0
"""Time for a cancelled program to save, as with the local launcher."""
RESTART_S: Final = 5.0
"""Time from the end of a program to its restart on the same nodes."""
EXIT_REQUEST_S: Final = 3600.0
"""Time for a program that was asked to exit, because its nodes are not being preempted."""
_CANCELLED: Final = "cancelled on request"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOrder:
    """The launch request."""

    key: str
    job_id: str
    submitted_at: datetime
    first_attempt: int
    nodes: int
    max_failures: int
    checkpoint: SimulatedCheckpoint | None
    """The newest checkpoint that earlier launches of the job left in the store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reclaim:
    """The end of a placement by request: announced at `at`, completed by `deadline`."""

    at: datetime
    deadline: datetime
    """Equal to `at` without notice."""
    detail: str
    cause: Cause | None
    """The reported cause of the loss; None if the launch ends with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineStage:
    """A placement and the time before it."""

    denials: tuple[Denial, ...]
    placement: Placement | None = None
    """Placement of the stage; None if the launch was cancelled before it, or waits for ever."""
    reports: tuple[tuple[datetime, Report], ...] = ()
    ending: LaunchResult | None = None
    """End of the launch; None if another stage follows, or the launch waits for ever."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The course of one launch, from submission to end."""

    order: LaunchOrder
    reclaims: tuple[Reclaim, ...]
    """Preemptions that users requested."""
    cancelled_at: datetime | None
    market: SpotMarket
    program: SimulatedProgram
    behavior: LauncherBehavior

    def stages(self) -> Iterator[TimelineStage]:
        """Yield all stages, computed on demand; an unfavorable market may make them endless."""
        at, found = self.order.submitted_at, self.order.checkpoint
        failures_left, trained = self.order.max_failures, False
        previous: Placement | None = None
        for number in itertools.count(1):
            denials, placed = (
                self._restart(previous, at) if previous else self._provision(number, at)
            )
            if placed is None:
                ending = self._cancelled(at) if self.cancelled_at is not None else None
                yield TimelineStage(denials=denials, ending=ending)
                return
            recalls, played = self._run_placement(number, placed, found, failures_left)
            at = _end(placed, played)
            found, trained = played.checkpoint or found, trained or played.trained
            stage = TimelineStage(
                denials=denials,
                placement=placed,
                reports=tuple(_reports(played, self._attempt(number), placed.ready_at)),
                ending=self._ending(played, recalls, at, last=not trained or failures_left <= 1),
            )
            if stage.ending:
                yield stage
                return
            cause, detail = self._loss(played, recalls, at)
            taken = any(each.cause is Cause.PREEMPTED and each.at <= at for each in recalls)
            previous = (
                placed if played.exit_code in self.behavior.restart_on and not taken else None
            )
            failures_left -= cause is Cause.USER_ERROR
            yield replace(stage, placement=replace(placed, lost_at=at, cause=cause, detail=detail))

    def _run_placement(
        self, number: int, placed: Placement, found: SimulatedCheckpoint | None, failures_left: int
    ) -> tuple[list[Reclaim], SimulatedAttempt]:
        """Return the course of placement `number`, and the reclaims that affected it."""
        recalls = self._applicable_reclaims(number, placed.zone, placed.ready_at)
        played = self._simulate(number, placed, recalls, found, failures_left)
        if self.cancelled_at == _end(placed, played):
            # A placement that ended at the moment of the cancel may have been observed, so it stays unchanged.
            earlier = [recall for recall in recalls if recall.cause is not None]
            alone = self._simulate(number, placed, earlier, found, failures_left)
            if _end(placed, alone) == self.cancelled_at:
                return earlier, alone
        return recalls, played

    def _restart(
        self, previous: Placement, at: datetime
    ) -> tuple[tuple[Denial, ...], Placement | None]:
        """Restart the program on the same nodes; None if the launch is cancelled before."""
        ready_at = at + timedelta(seconds=RESTART_S)
        if self._is_cancelled_before(ready_at):
            return (), None
        return (), replace(previous, ready_at=ready_at)

    def _provision(self, number: int, at: datetime) -> tuple[tuple[Denial, ...], Placement | None]:
        """Return the denials before placement `number`, and the placement; None without one."""
        denials: list[Denial] = []
        for attempt in itertools.count():
            offer = self.market.offer(number, attempt, at=at)
            if not self._is_cancelled_before(at):
                denials += [self._denial(at, zone) for zone in offer.passed]
            at += timedelta(seconds=offer.wait_s)
            if self._is_cancelled_before(at):
                break
            if not offer.denied:
                return tuple(denials), self._placement(at, offer.zone, offer.micros_per_node_hour)
            denials.append(self._denial(at, offer.zone))
            if math.isinf(offer.retry_s):
                break
            at += timedelta(seconds=offer.retry_s)
        return tuple(denials), None

    def _is_cancelled_before(self, at: datetime) -> bool:
        # What happened at the moment of the cancel may have been observed.
        return self.cancelled_at is not None and self.cancelled_at < at

    def _denial(self, at: datetime, zone: str) -> Denial:
        kind = "spot" if self.market.parameters.is_spot else "on-demand"
        return Denial(at=at, zone=zone, detail=f"no {kind} capacity")

    def _placement(self, at: datetime, zone: str, micros_per_node_hour: int) -> Placement:
        nodes, groups = self.order.nodes, self._groups(zone, micros_per_node_hour)
        return Placement(
            ready_at=at,
            zone=zone,
            nodes=nodes,
            micros_per_hour=sum(group.micros_per_hour for group in groups),
            on_demand_micros_per_hour=nodes * self.market.parameters.on_demand_micros,
            simulated=True,
            instance_type="simulated",
            is_spot=self.market.parameters.is_spot,
            groups=groups if len(groups) > 1 else (),
        )

    def _groups(self, zone: str, micros_per_node_hour: int) -> tuple[NodeGroup, ...]:
        climate, sure = self.market.parameters, self.behavior.on_demand_nodes
        sure = sure if sure < self.order.nodes else 0
        shares = [(self.order.nodes - sure, climate.is_spot, micros_per_node_hour)]
        shares += [(sure, False, climate.on_demand_micros)] if sure else []
        return tuple(
            NodeGroup(
                nodes=nodes,
                zone=zone,
                is_spot=is_spot,
                micros_per_hour=nodes * micros,
                on_demand_micros_per_hour=nodes * climate.on_demand_micros,
            )
            for nodes, is_spot, micros in shares
        )

    def _cancelled(self, waiting_since: datetime) -> LaunchResult:
        assert self.cancelled_at is not None
        at = max(self.cancelled_at, waiting_since)
        return LaunchResult(at=at, outcome=Outcome.CANCELLED, detail=_CANCELLED)

    def _applicable_reclaims(self, number: int, zone: str, ready_at: datetime) -> list[Reclaim]:
        """Return the reclaims that may end placement `number`, in order of time."""
        recalls = [reclaim for reclaim in self.reclaims if reclaim.at >= ready_at]
        lifetime = self.market.lifetime(number, zone, ready_at)
        if lifetime.lifetime_s is not None:
            deadline = ready_at + timedelta(seconds=lifetime.lifetime_s)
            at = max(ready_at, deadline - timedelta(seconds=lifetime.notice_s))
            recalls.append(reclaim(at, deadline, node=number % self.order.nodes))
        if self.cancelled_at is not None:
            notice_s = CANCEL_NOTICE_S if self.behavior.saves_on_cancel else 0
            deadline = self.cancelled_at + timedelta(seconds=notice_s)
            recalls.append(
                Reclaim(at=self.cancelled_at, deadline=deadline, detail=_CANCELLED, cause=None)
            )
        return sorted(recalls, key=lambda recall: recall.at)

    def _simulate(
        self,
        number: int,
        placed: Placement,
        recalls: Sequence[Reclaim],
        found: SimulatedCheckpoint | None,
        failures_left: int,
    ) -> SimulatedAttempt:
        failure = self.program.failure
        met = AttemptConditions(
            attempt=self._attempt(number),
            nodes=self.order.nodes,
            checkpoint=found,
            fails=failure is not None and self.order.max_failures - failures_left < failure.times,
        )
        if announced := [recall for recall in recalls if recall.deadline > recall.at]:
            met = replace(
                met,
                notice_s=(announced[0].at - placed.ready_at).total_seconds(),
                deadline_s=(announced[0].deadline - placed.ready_at).total_seconds(),
            )
        if recalls:
            # A reclaim after the program's end has an even later deadline and no effect.
            kill_at = min(recall.deadline for recall in recalls)
            met = replace(met, kill_s=(kill_at - placed.ready_at).total_seconds())
        return simulate_attempt(self.program, met)

    def _ending(
        self, played: SimulatedAttempt, recalls: Sequence[Reclaim], at: datetime, *, last: bool
    ) -> LaunchResult | None:
        """Return how the launch ends with this placement; None if it continues.

        `last`: one more failure is final.
        """
        effective = [recall for recall in recalls if recall.at <= at]
        code = played.exit_code
        if any(recall.cause is None for recall in effective):
            return LaunchResult(at=at, outcome=Outcome.CANCELLED, detail=_CANCELLED)
        if code == Exit.DONE:
            return LaunchResult(at=at, outcome=Outcome.SUCCEEDED, exit_code=code)
        may_restart = code == Exit.PREEMPTED or code in self.behavior.restart_on
        if not effective and not may_restart and (last or code in NO_RETRY):
            return LaunchResult(
                at=at, outcome=Outcome.FAILED, exit_code=code, detail=_failure(played)
            )
        return None

    def _loss(
        self, played: SimulatedAttempt, recalls: Sequence[Reclaim], at: datetime
    ) -> tuple[Cause, str]:
        """Return the cause of a loss as the launcher reports it, if the launch continues."""
        if recalls and recalls[0].at <= at:
            first = recalls[0]
            assert first.cause is not None
            if first.cause is Cause.PREEMPTED and not self.behavior.reports_reclaims:
                return Cause.NODE_FAILED, "nodes preempted or failed"
            return first.cause, first.detail
        if played.exit_code == Exit.PREEMPTED:
            return Cause.NODE_FAILED, "the program saved and exited without a notice from Holdfast"
        return Cause.USER_ERROR, _failure(played)

    def _attempt(self, number: int) -> int:
        return self.order.first_attempt + number - 1


def _end(placed: Placement, played: SimulatedAttempt) -> datetime:
    return placed.ready_at + timedelta(seconds=played.ended_s)


def reclaim(at: datetime, deadline: datetime, *, node: int) -> Reclaim:
    """Return a preemption of node `node`."""
    notice_s = (deadline - at).total_seconds()
    word = f"with {notice_s:.3g} s of notice" if notice_s else "without notice"
    detail = f"node {node} preempted {word}"
    return Reclaim(at=at, deadline=deadline, detail=detail, cause=Cause.PREEMPTED)


def request_exit(at: datetime) -> Reclaim:
    """Return a request to save and exit; the nodes stay."""
    deadline = at + timedelta(seconds=EXIT_REQUEST_S)
    detail = "the program exited on request"
    return Reclaim(at=at, deadline=deadline, detail=detail, cause=Cause.NODE_FAILED)


def _failure(played: SimulatedAttempt) -> str:
    return f"node 0 exited with {played.exit_code}: {played.detail}"


def _reports(
    played: SimulatedAttempt, attempt: int, ready_at: datetime
) -> Iterator[tuple[datetime, Report]]:
    """Return a placement's reports, numbered and dated."""
    for n, report in enumerate(played.reports, start=1):
        at = ready_at + timedelta(seconds=report.at_s)
        body: dict[str, Json] = dict(report.body)
        if report.snapshot_s is not None:
            body["snapshot_at"] = (ready_at + timedelta(seconds=report.snapshot_s)).isoformat()
        yield at, Report(attempt, n, at.isoformat(), report.kind, body)
