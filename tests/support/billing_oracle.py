"""Simulated jobs in steps of a millisecond, with their recorded events: an oracle for bills.

A step takes one millisecond, so that time and steps are comparable: a step that is or must be repeated is a
lost millisecond.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast.domain.billing.phases import Phases
from holdfast.domain.events import (
    CapacityLost,
    Cause,
    Event,
    NodeLost,
    NodeReplaced,
    Outcome,
    PriceChanged,
    RestoreStarted,
    TrainingStarted,
)
from holdfast.domain.events.values import NodeGroup, PassedOver
from support.events import (
    at,
    finished,
    launched,
    left,
    lost,
    ready,
    replaced,
    restarted,
    restoring,
    saved,
    submitted,
)

MS_PER_HOUR = 3_600_000


class Doing(StrEnum):
    WAITING = "waiting"
    SETUP = "setup"
    RESTORE = "restore"
    STEP = "step"
    SNAPSHOT = "snapshot"
    REPLACEMENT = "replacement"
    IDLE = "idle"


@dataclass(frozen=True)
class Moment:
    """The activity of a job in one millisecond, and its number of completed steps."""

    doing: Doing
    attempt: int
    step: int = 0
    start: int = 0
    """Number of the start of the ranks within the attempt, from 0."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The course of one attempt, in milliseconds."""

    wait: int
    setup: int
    restore: int
    """Below zero: the attempt is preempted before it restores."""
    laps: list[tuple[int, int]]
    """Steps, followed by the stall of a checkpoint."""
    sprint: int
    """Steps after the last checkpoint."""
    idle: int
    """After the worker has exited; below zero if it is killed silently."""
    damaged: int
    """Number of newest checkpoints that the attempt finds damaged."""
    micros: int
    pause: int = 0
    """Milliseconds for which the ranks wait for a replaced one, after the first step of each lap and sprint."""
    restarts: tuple[Plan, ...] = ()
    """Further starts of the ranks on the same nodes. Waits, prices and idle time of these plans have no effect."""
    groups: tuple[NodeGroup, ...] = ()
    """Empty: all nodes are alike and cost `micros`."""
    changes: tuple[tuple[int, int, int], ...] = ()
    """Price changes: milliseconds after the nodes are ready, group, micro-dollars an hour."""
    nodes: int = 1
    node_changes: tuple[tuple[int, int, int], ...] = ()
    """Lost and replaced nodes: milliseconds after the nodes are ready, nodes that run, micro-dollars an hour."""


@dataclass
class Life:
    """A simulated job and its recorded events."""

    began_ms: int = 0
    """Milliseconds after `DAWN`."""
    moments: list[Moment] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    """First step of each start of the ranks that trained, by attempt and start."""
    good: list[tuple[int, str]] = field(default_factory=list)
    """Checkpoints that are not known to be damaged, by step."""
    end: Outcome | None = None
    stands: bool = False
    start: int = 0
    """The current start of the ranks within the attempt."""

    def __post_init__(self) -> None:
        self.log += [submitted(self.now_s), launched(self.now_s)]

    @property
    def now_s(self) -> float:
        return (self.began_ms + len(self.moments)) / 1000

    @property
    def speaks(self) -> bool:
        return any(isinstance(event, RestoreStarted | TrainingStarted) for event in self.log)

    @property
    def losses(self) -> set[int]:
        return {event.attempt for event in self.log if isinstance(event, CapacityLost)}

    def spend(self, amount_ms: int, doing: Doing, attempt: int, step: int = 0) -> None:
        self.moments += [Moment(doing, attempt, step, self.start)] * amount_ms

    def live(self, attempt: int, plan: Plan) -> None:
        self.start = 0
        self.spend(plan.wait, Doing.WAITING, attempt)
        nodes = ready(self.now_s, attempt=attempt, micros=plan.micros)
        self.log.append(replace(nodes, nodes=plan.nodes, groups=plan.groups))
        self._change_nodes(attempt, plan)
        self.log += [
            PriceChanged(
                at=at(self.now_s + after_ms / 1000),
                attempt=attempt,
                group=group,
                micros_per_hour=micros,
                on_demand_micros_per_hour=2 * micros,
            )
            for after_ms, group, micros in plan.changes
        ]
        for again in (*plan.restarts, None):
            self.spend(plan.setup, Doing.SETUP, attempt)
            if plan.restore >= 0:
                self.log.append(restoring(self.now_s, attempt=attempt))
                self.spend(plan.restore, Doing.RESTORE, attempt)
            step = self._train(attempt, plan) if plan.restore > 0 else 0
            if again is None or plan.restore <= 0:
                break  # Ranks that never trained do not start again.
            self.log.append(restarted(self.now_s, attempt=attempt, step=step))
            self.start, plan = self.start + 1, again
        if plan.restore > 0 and plan.idle >= 0:
            self.log.append(left(self.now_s, attempt=attempt, step=step))
            self.spend(plan.idle, Doing.IDLE, attempt, step)

    def _change_nodes(self, attempt: int, plan: Plan) -> None:
        running = plan.nodes
        for after_ms, nodes, micros in plan.node_changes:
            same = {
                "at": at(self.now_s + after_ms / 1000),
                "attempt": attempt,
                "node": min(running, nodes),
                "nodes": nodes,
                "micros_per_hour": micros,
                "on_demand_micros_per_hour": 3 * micros,
            }
            if nodes < running:
                self.log.append(NodeLost(**same, cause=Cause.PREEMPTED))
            else:
                self.log.append(NodeReplaced(**same))
            running = nodes

    def _train(self, attempt: int, plan: Plan) -> int:
        """Train and return the last step."""
        self.good.sort()
        passed_over = [
            PassedOver(checkpoint=name, reason="damaged")
            for _, name in self.good[::-1][: plan.damaged]
        ]
        self.good = self.good[: len(self.good) - len(passed_over)]
        step = self.starts[attempt, self.start] = self.good[-1][0] if self.good else 0
        self.log.append(
            TrainingStarted(
                at=at(self.now_s), attempt=attempt, step=step, passed_over=tuple(passed_over)
            )
        )
        for steps, stall in plan.laps:
            step = self._step(attempt, step, steps, plan.pause)
            result = saved(self.now_s, attempt=attempt, step=step, stall_ms=stall)
            # Another start of the attempt may save the same step.
            result = replace(result, checkpoint=f"{result.checkpoint}-{self.start}")
            self.log.append(result)
            self.good.append((step, result.checkpoint))
            self.spend(stall, Doing.SNAPSHOT, attempt, step)
        return self._step(attempt, step, plan.sprint, plan.pause)

    def _step(self, attempt: int, step: int, steps: int, pause: int) -> int:
        for number in range(steps):
            if number == 1 and pause:
                self.spend(pause, Doing.REPLACEMENT, attempt, step)
                self.log.append(replaced(self.now_s, attempt=attempt, step=step, paused_ms=pause))
            self.spend(1, Doing.STEP, attempt, step)
            step += 1
        return step

    def kept(self, attempt: int, start: int = 0) -> float:
        """The step from which the job continued after a start of the ranks, or would have to."""
        later = [step for n, step in self.starts.items() if n > (attempt, start)]
        last = max((n.attempt, n.start) for n in self.moments)
        if later:
            return min(later)
        if (attempt, start) == last and (self.stands or self.end is Outcome.SUCCEEDED):
            return math.inf
        return max((step for step, _ in self.good), default=0)


def end(life: Life, attempt: int, end: str | None) -> None:
    if end is None:
        life.stands = True
    elif end == "recovers":
        life.log.append(lost(life.now_s, attempt=attempt))
        life.spend(5, Doing.WAITING, attempt)
    else:
        life.end = Outcome(end)
        life.log.append(finished(life.now_s, life.end))


def walked(life: Life, attempt: int) -> Phases:
    """The phases of an attempt, counted millisecond by millisecond."""
    counted = Counter[str]()
    for moment in life.moments:
        if moment.attempt == attempt and moment.doing is not Doing.WAITING:
            counted[moment_phase(moment, life.kept(attempt, moment.start))] += 1
    return Phases(**counted)


def moment_phase(moment: Moment, kept: float) -> str:
    match moment.doing:
        case Doing.STEP:
            return "useful" if moment.step < kept else "lost"
        case Doing.SNAPSHOT | Doing.REPLACEMENT:
            return "stalled" if moment.step <= kept else "lost"
        case Doing.IDLE:
            return "stalled"
        case _:
            return moment.doing.value
