"""What a launcher does by itself. The defaults are those of the local launcher; SkyPilot has others.

What becomes of one launch. Pure: the same order, recalls and weather give the same timeline, whenever it is asked for.
"""

from __future__ import annotations

import itertools
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
    Saved,
    SimulatedAttempt,
    SimulatedProgram,
    simulate_attempt,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherBehavior:
    """How the simulated cloud behaves beside its weather."""

    saves_on_cancel: bool = True
    """Whether a cancel gives the program time to save; where not, its nodes are gone at once."""
    tells_reclaims: bool = True
    """Whether a placement that was taken is told apart from one that failed."""
    restart_on: frozenset[int] = frozenset()
    """Exit codes after which a program is started again on the same nodes, however often it has failed."""
    on_demand_nodes: int = 0
    """Nodes of each placement that are bought on demand, where it has more than that: the others are spot."""


LIKE_SKYPILOT: Final = LauncherBehavior(
    saves_on_cancel=False, tells_reclaims=False, restart_on=frozenset({1, 75})
)

CANCEL_NOTICE_S: Final = 30.0
"""What a cancelled program gets to save its work, as with the local launcher."""
RESTART_S: Final = 5.0
"""From the end of a program until it is started again on the same nodes."""
PATIENCE_S: Final = 3600.0
"""What a program gets that was asked to leave: nobody takes its nodes for that."""
_CANCELLED: Final = "cancelled on request"


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What was asked for."""

    key: str
    job_id: str
    submitted_at: datetime
    first_attempt: int
    nodes: int
    max_failures: int
    found: Saved | None
    """The newest checkpoint that earlier launches of the job left in the store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reclaim:
    """Somebody calls a placement back: told at `at`, gone at `deadline` at the latest."""

    at: datetime
    deadline: datetime
    """The same as `at` when nobody is told."""
    detail: str
    cause: Cause | None
    """As what its loss is told; None where the launch ends with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A placement and the way to it."""

    denials: tuple[Denial, ...]
    placement: Placement | None = None
    """None when the launch was cancelled before there was one."""
    reports: tuple[tuple[datetime, Report], ...] = ()
    ending: LaunchResult | None = None
    """None when another stage follows."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The life of one launch, from its submit to its end."""

    order: Order
    reclaims: tuple[Reclaim, ...]
    """Nodes that people asked the market to take."""
    cancelled_at: datetime | None
    weather: SpotMarket
    program: SimulatedProgram
    habits: LauncherBehavior

    def stages(self) -> Iterator[Stage]:
        """All stages, each computed when it is asked for: in bad weather there may be no last one."""
        at, found = self.order.submitted_at, self.order.found
        failures_left, trained = self.order.max_failures, False
        stood: Placement | None = None
        for number in itertools.count(1):
            denials, placed = self._again(stood, at) if stood else self._provision(number, at)
            if placed is None:
                yield Stage(denials=denials, ending=self._cancelled(at))
                return
            recalls, played = self._course(number, placed, found, failures_left)
            at = _end(placed, played)
            found, trained = played.saved or found, trained or played.trained
            stage = Stage(
                denials=denials,
                placement=placed,
                reports=tuple(_dated(played, self._attempt(number), placed.ready_at)),
                ending=self._ending(played, recalls, at, last=not trained or failures_left <= 1),
            )
            if stage.ending:
                yield stage
                return
            cause, detail = self._loss(played, recalls, at)
            taken = any(each.cause is Cause.PREEMPTED and each.at <= at for each in recalls)
            stood = placed if played.exit_code in self.habits.restart_on and not taken else None
            failures_left -= cause is Cause.USER_ERROR
            yield replace(stage, placement=replace(placed, lost_at=at, cause=cause, detail=detail))

    def _course(
        self, number: int, placed: Placement, found: Saved | None, failures_left: int
    ) -> tuple[list[Reclaim], SimulatedAttempt]:
        """What becomes of placement `number`, and of the recalls those that had a part in it."""
        recalls = self._recalls(number, placed.zone, placed.ready_at)
        played = self._play(number, placed, recalls, found, failures_left)
        if self.cancelled_at == _end(placed, played):
            # What was over in the moment of the cancel may have been told already: it stays as it was.
            others = [recall for recall in recalls if recall.cause is not None]
            alone = self._play(number, placed, others, found, failures_left)
            if _end(placed, alone) == self.cancelled_at:
                return others, alone
        return recalls, played

    def _again(self, stood: Placement, at: datetime) -> tuple[tuple[Denial, ...], Placement | None]:
        """The same nodes once more; None if the launch is cancelled before."""
        ready_at = at + timedelta(seconds=RESTART_S)
        if self.cancelled_at is not None and self.cancelled_at <= ready_at:
            return (), None
        return (), replace(stood, ready_at=ready_at)

    def _provision(self, number: int, at: datetime) -> tuple[tuple[Denial, ...], Placement | None]:
        """What happens on the way to placement `number`; None for it if the launch is cancelled before."""
        denials: list[Denial] = []
        for attempt in itertools.count():
            offer = self.weather.offer(number, attempt)
            at += timedelta(seconds=offer.wait_s)
            if self.cancelled_at is not None and self.cancelled_at <= at:
                break
            if not offer.denied:
                return tuple(denials), self._placement(at, offer.zone, offer.micros_per_node_hour)
            denials.append(Denial(at=at, zone=offer.zone, detail="no spot capacity"))
        return tuple(denials), None

    def _placement(self, at: datetime, zone: str, micros_per_node_hour: int) -> Placement:
        nodes, groups = self.order.nodes, self._groups(zone, micros_per_node_hour)
        return Placement(
            ready_at=at,
            zone=zone,
            nodes=nodes,
            micros_per_hour=sum(group.micros_per_hour for group in groups),
            on_demand_micros_per_hour=nodes * self.weather.climate.on_demand_micros,
            simulated=True,
            instance_type="simulated",
            is_spot=self.weather.climate.is_spot,
            groups=groups if len(groups) > 1 else (),
        )

    def _groups(self, zone: str, micros_per_node_hour: int) -> tuple[NodeGroup, ...]:
        climate, sure = self.weather.climate, self.habits.on_demand_nodes
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

    def _recalls(self, number: int, zone: str, ready_at: datetime) -> list[Reclaim]:
        """Whoever calls placement `number` back, or would if it stood for long enough; first come, first heard."""
        recalls = [reclaim for reclaim in self.reclaims if reclaim.at >= ready_at]
        fate = self.weather.fate(number, zone, ready_at)
        if fate.lifetime_s is not None:
            deadline = ready_at + timedelta(seconds=fate.lifetime_s)
            at = max(ready_at, deadline - timedelta(seconds=fate.notice_s))
            recalls.append(reclaim(at, deadline, node=number % self.order.nodes))
        if self.cancelled_at is not None:
            notice_s = CANCEL_NOTICE_S if self.habits.saves_on_cancel else 0
            deadline = self.cancelled_at + timedelta(seconds=notice_s)
            recalls.append(
                Reclaim(at=self.cancelled_at, deadline=deadline, detail=_CANCELLED, cause=None)
            )
        return sorted(recalls, key=lambda recall: recall.at)

    def _play(
        self,
        number: int,
        placed: Placement,
        recalls: Sequence[Reclaim],
        found: Saved | None,
        failures_left: int,
    ) -> SimulatedAttempt:
        failure = self.program.failure
        met = AttemptConditions(
            attempt=self._attempt(number),
            nodes=self.order.nodes,
            found=found,
            fails=failure is not None and self.order.max_failures - failures_left < failure.times,
        )
        if told := [recall for recall in recalls if recall.deadline > recall.at]:
            met = replace(
                met,
                notice_s=(told[0].at - placed.ready_at).total_seconds(),
                deadline_s=(told[0].deadline - placed.ready_at).total_seconds(),
            )
        if recalls:
            # One that comes after the program has gone has a deadline that is later still, and changes nothing.
            kill_at = min(recall.deadline for recall in recalls)
            met = replace(met, kill_s=(kill_at - placed.ready_at).total_seconds())
        return simulate_attempt(self.program, met)

    def _ending(
        self, played: SimulatedAttempt, recalls: Sequence[Reclaim], at: datetime, *, last: bool
    ) -> LaunchResult | None:
        """How the launch ends with this placement, or None if it goes on. `last`: one more failure is too many."""
        heard = [recall for recall in recalls if recall.at <= at]
        code = played.exit_code
        if any(recall.cause is None for recall in heard):
            return LaunchResult(at=at, outcome=Outcome.CANCELLED, detail=_CANCELLED)
        if code == Exit.DONE:
            return LaunchResult(at=at, outcome=Outcome.SUCCEEDED, exit_code=code)
        goes_on = code == Exit.PREEMPTED or code in self.habits.restart_on
        if not heard and not goes_on and (last or code in NO_RETRY):
            return LaunchResult(
                at=at, outcome=Outcome.FAILED, exit_code=code, detail=_failure(played)
            )
        return None

    def _loss(
        self, played: SimulatedAttempt, recalls: Sequence[Reclaim], at: datetime
    ) -> tuple[Cause, str]:
        """Why the placement was lost, as the launcher tells it where the launch goes on."""
        if recalls and recalls[0].at <= at:
            first = recalls[0]
            assert first.cause is not None
            if first.cause is Cause.PREEMPTED and not self.habits.tells_reclaims:
                return Cause.NODE_FAILED, "nodes preempted or failed"
            return first.cause, first.detail
        if played.exit_code == Exit.PREEMPTED:
            return Cause.NODE_FAILED, "the program left with its work saved, but not on our notice"
        return Cause.USER_ERROR, _failure(played)

    def _attempt(self, number: int) -> int:
        return self.order.first_attempt + number - 1


def _end(placed: Placement, played: SimulatedAttempt) -> datetime:
    return placed.ready_at + timedelta(seconds=played.ended_s)


def reclaim(at: datetime, deadline: datetime, *, node: int) -> Reclaim:
    """The market takes node `node`."""
    notice_s = (deadline - at).total_seconds()
    word = f"with {notice_s:.3g} s of notice" if notice_s else "without notice"
    detail = f"the market took node {node} {word}"
    return Reclaim(at=at, deadline=deadline, detail=detail, cause=Cause.PREEMPTED)


def request_exit(at: datetime) -> Reclaim:
    """Somebody asks the program to save its work and leave; its nodes stay."""
    deadline = at + timedelta(seconds=PATIENCE_S)
    detail = "the program left when it was asked to"
    return Reclaim(at=at, deadline=deadline, detail=detail, cause=Cause.NODE_FAILED)


def _failure(played: SimulatedAttempt) -> str:
    return f"node 0 exited with {played.exit_code}: {played.detail}"


def _dated(
    played: SimulatedAttempt, attempt: int, ready_at: datetime
) -> Iterator[tuple[datetime, Report]]:
    """The reports of a placement, numbered, each with the time at which it is said."""
    for n, said in enumerate(played.said, start=1):
        at = ready_at + timedelta(seconds=said.at_s)
        body: dict[str, Json] = dict(said.body)
        if said.snapshot_s is not None:
            body["snapshot_at"] = (ready_at + timedelta(seconds=said.snapshot_s)).isoformat()
        yield at, Report(attempt, n, at.isoformat(), said.kind, body)
