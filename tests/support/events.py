"""Builders of events: each takes the relevant fields and fills in the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.domain.events import (
    CapacityDenied,
    CapacityLost,
    Cause,
    CheckpointCommitted,
    CheckpointFailed,
    DrillRequested,
    Finished,
    Guard,
    GuardTripped,
    LaunchRequested,
    LeftReason,
    LimitsChanged,
    NodeLost,
    NodeReplaced,
    NodesReady,
    Outcome,
    Paused,
    PauseRequested,
    PreemptionNoticed,
    RanksReplaced,
    RanksRestarted,
    RestoreStarted,
    ResumeRequested,
    Submitted,
    TrainingStarted,
    WorkerLeft,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.observation import Denial, NodeChange, Placement

DAWN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

SPOT = 3_600_000
"""One micro-dollar per millisecond, so that costs equal durations."""
ON_DEMAND = 10_800_000


def at(seconds: float) -> datetime:
    """Return the time `seconds` after `DAWN`."""
    return DAWN + timedelta(seconds=seconds)


def submitted(
    seconds: float = 0,
    *,
    name: str = "tiny-gpt",
    infra: str = "local",
    task: str | None = None,
    nodes: tuple[int | None, int] = (None, 1),
    **holdfast: Any,
) -> Submitted:
    """A submission; `nodes` are the minimum and number of nodes."""
    resources, (least, most) = {"infra": infra}, nodes
    spec = {"name": name, "run": "true", "resources": resources, "holdfast": holdfast}
    spec |= {"num_nodes": most, "min_nodes": least}
    text = task if task is not None else f"name: {name}\nnum_nodes: 1\nrun: 'true'\n"
    return Submitted(at=at(seconds), name=name, spec=spec, task=text)


def launched(seconds: float = 0, *, launch: int = 1) -> LaunchRequested:
    return LaunchRequested(at=at(seconds), launch=launch)


def denied(seconds: float = 0, *, zone: str = "a") -> CapacityDenied:
    return CapacityDenied(at=at(seconds), zone=zone)


def ready(
    seconds: float = 0, *, attempt: int = 1, zone: str = "a", micros: int = SPOT, nodes: int = 1
) -> NodesReady:
    return NodesReady(
        at=at(seconds),
        attempt=attempt,
        zone=zone,
        nodes=nodes,
        micros_per_hour=micros,
        on_demand_micros_per_hour=ON_DEMAND,
        simulated=False,
    )


def lost(
    seconds: float = 0, *, attempt: int = 1, cause: Cause = Cause.PREEMPTED, drill: bool = False
) -> CapacityLost:
    return CapacityLost(at=at(seconds), attempt=attempt, cause=cause, drill=drill)


def drill_requested(
    seconds: float = 0, *, node: int | None = None, notice_s: float | None = None, by: str = ""
) -> DrillRequested:
    return DrillRequested(at=at(seconds), attempt=1, node=node, notice_s=notice_s, by=by)


def node_lost(
    seconds: float = 0,
    *,
    attempt: int = 1,
    node: int = 1,
    nodes: int = 1,
    micros: int = SPOT,
    cause: Cause = Cause.PREEMPTED,
    drill: bool = False,
) -> NodeLost:
    return NodeLost(
        at=at(seconds),
        attempt=attempt,
        node=node,
        nodes=nodes,
        micros_per_hour=micros,
        on_demand_micros_per_hour=ON_DEMAND,
        cause=cause,
        drill=drill,
    )


def node_replaced(
    seconds: float = 0, *, attempt: int = 1, node: int = 1, nodes: int = 2, micros: int = 2 * SPOT
) -> NodeReplaced:
    return NodeReplaced(
        at=at(seconds),
        attempt=attempt,
        node=node,
        nodes=nodes,
        micros_per_hour=micros,
        on_demand_micros_per_hour=2 * ON_DEMAND,
    )


def finished(
    seconds: float = 0, outcome: Outcome = Outcome.SUCCEEDED, *, exit_code: int | None = 0
) -> Finished:
    return Finished(at=at(seconds), outcome=outcome, exit_code=exit_code)


def tripped(
    seconds: float = 0, guard: Guard = Guard.MAX_COST, *, detail: str = "too dear"
) -> GuardTripped:
    return GuardTripped(at=at(seconds), guard=guard, detail=detail)


def pausing(seconds: float = 0, *, reason: str = "a long weekend") -> PauseRequested:
    return PauseRequested(at=at(seconds), reason=reason)


def paused(seconds: float = 0, *, detail: str = "a long weekend; resume it") -> Paused:
    return Paused(at=at(seconds), detail=detail)


def resumed(seconds: float = 0) -> ResumeRequested:
    return ResumeRequested(at=at(seconds))


def relimited(seconds: float = 0, **limits: Any) -> LimitsChanged:
    written = Limits(**limits).model_dump(mode="json")
    return LimitsChanged(at=at(seconds), limits=written, changed=tuple(limits))


def noticed(
    seconds: float = 0, *, attempt: int = 1, step: int = 0, left_s: float | None = 120
) -> PreemptionNoticed:
    return PreemptionNoticed(at=at(seconds), attempt=attempt, step=step, left_s=left_s)


def restoring(seconds: float = 0, *, attempt: int = 1) -> RestoreStarted:
    return RestoreStarted(at=at(seconds), attempt=attempt)


def restarted(
    seconds: float = 0,
    *,
    attempt: int = 1,
    step: int = 0,
    exit_code: int = 137,
    detail: str = "rank 1 was killed",
) -> RanksRestarted:
    return RanksRestarted(
        at=at(seconds), attempt=attempt, step=step, exit_code=exit_code, detail=detail
    )


def replaced(
    seconds: float = 0,
    *,
    attempt: int = 1,
    step: int = 0,
    ranks: tuple[int, ...] = (1,),
    paused_ms: int = 0,
    hosted: tuple[int, ...] = (),
) -> RanksReplaced:
    return RanksReplaced(
        at=at(seconds),
        attempt=attempt,
        step=step,
        ranks=ranks,
        cause="rank 1 was killed",
        paused_ms=paused_ms,
        hosted_nodes=hosted,
    )


def training(
    seconds: float = 0, *, attempt: int = 1, step: int = 0, total: int | None = 1000
) -> TrainingStarted:
    return TrainingStarted(at=at(seconds), attempt=attempt, step=step, total_steps=total)


def saved(
    snapshot_s: float,
    *,
    attempt: int = 1,
    step: int,
    stall_ms: int = 0,
    durable_s: float | None = None,
    name: str = "",
    **more: Any,
) -> CheckpointCommitted:
    """A checkpoint whose snapshot was taken at `snapshot_s`."""
    durable = at(snapshot_s if durable_s is None else durable_s)
    return CheckpointCommitted(
        at=max(durable, at(snapshot_s) + timedelta(milliseconds=stall_ms)),
        attempt=attempt,
        step=step,
        checkpoint=name or f"step-{step}-epoch-{attempt}",
        stall_ms=stall_ms,
        upload_ms=0,
        snapshot_at=at(snapshot_s),
        weights_sha256="00",
        **{"size_bytes": 1, **more},
    )


def failing(
    seconds: float = 0, *, attempt: int = 1, step: int, detail: str = "no room"
) -> CheckpointFailed:
    return CheckpointFailed(at=at(seconds), attempt=attempt, step=step, detail=detail)


def left(
    seconds: float = 0,
    *,
    attempt: int = 1,
    step: int,
    reason: LeftReason = LeftReason.PREEMPTED,
    exit_code: int = 75,
) -> WorkerLeft:
    return WorkerLeft(
        at=at(seconds), attempt=attempt, step=step, reason=reason, exit_code=exit_code
    )


def placement(
    ready_s: float,
    lost_s: float | None = None,
    *,
    zone: str = "a",
    micros: int = SPOT,
    cause: Cause = Cause.PREEMPTED,
) -> Placement:
    return Placement(
        ready_at=at(ready_s),
        zone=zone,
        nodes=1,
        micros_per_hour=micros,
        on_demand_micros_per_hour=ON_DEMAND,
        simulated=False,
        lost_at=None if lost_s is None else at(lost_s),
        cause=None if lost_s is None else cause,
    )


def node_change(
    seconds: float, cause: Cause | None = None, *, node: int = 1, nodes: int | None = None
) -> NodeChange:
    """The loss of a node of two for a cause, or its replacement without one."""
    count = nodes if nodes is not None else 2 - (cause is not None)
    return NodeChange(
        at=at(seconds),
        node=node,
        nodes=count,
        micros_per_hour=count * SPOT,
        on_demand_micros_per_hour=count * ON_DEMAND,
        cause=cause,
    )


def denial(seconds: float, zone: str = "a") -> Denial:
    return Denial(at=at(seconds), zone=zone)


def guard_end(seconds: float) -> list[GuardTripped | Finished]:
    """Events of a job that a guard stopped and whose nodes were released at once."""
    return [tripped(seconds), finished(seconds, Outcome.FAILED, exit_code=None)]
