"""Drills: preemptions that users request, to test how a job recovers. Pure.

A loss says something about the spot market unless a user requested it. A launcher reports both in the
same way, so the reconciler compares each loss with the requests in the log and marks those that
follow one. The mark is a field of the loss, so that readers of the log need not compare them again.

A drill that would lose work is refused unless the user accepts the loss: the test of one job shall not
cost hours of it by mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.events import (
    PREEMPTION_CAUSES,
    CapacityLost,
    CheckpointCommitted,
    DrillRequested,
    Event,
    NodeLost,
    TrainingStarted,
)
from holdfast.domain.jobs.job import Job, PendingDrill

MIN_WORKER_NOTICE_S: Final = 30.0
"""Least notice of a worker that is asked to leave. A worker without reports fetches requests every 20 s: with a lower
value, the notice may be over before it arrives; a higher value forbids drills that leave little time to save."""
MAX_DELIVERY: Final = timedelta(seconds=60)
"""Time in which a drill without notice has to reach the worker. With a lower value, a worker that fetches requests every
20 s may miss it; a higher value takes nodes long after the user has asked for it."""
LEADER: Final = 0
"""The node that reports for all others, and whose loss ends the attempt."""
LEAVE_LATE: Final = timedelta(minutes=10)
"""Time after the notice within which a loss is that of the drill. A lower value takes the loss of a slow launcher for
one of the market; a higher value takes a preemption after a request that did not arrive for a drill."""


@dataclass(frozen=True, slots=True)
class GroupDrill:
    """Nodes of one group that have to end as if their machines had gone."""

    requested_at: datetime
    """By which the worker recognizes a drill that it has carried out."""
    nodes: tuple[int, ...]
    within_s: float
    """Seconds that are left of the notice; 0: they end at once."""


def request_drill(
    job: Job,
    now: datetime,
    *,
    node: int | None,
    notice_s: float | None,
    by: str = "",
    through_worker: bool = False,
    group: str = "",
) -> tuple[Event, ...]:
    """Request the preemption of a node, or of the node group with this name.

    It is recorded before the launcher receives it, so that the loss is never taken for one of the market.
    If the launcher refuses it, it stays without effect: it explains no loss of later nodes.
    """
    request = DrillRequested(
        at=now,
        attempt=job.attempt,
        node=node,
        notice_s=notice_s,
        by=by,
        through_worker=through_worker,
        group=group,
    )
    return (request,)


def pending_drill(job: Job, event: DrillRequested) -> PendingDrill:
    """The drill that an event requests."""
    if not event.through_worker:
        return PendingDrill(at=event.at, node=event.node)
    return PendingDrill(
        at=event.at,
        node=event.node,
        leaving_attempt=event.attempt,
        leave_at=event.at + timedelta(seconds=event.notice_s or 0),
        nodes=tuple(job.nodes_by_group.get(event.group, ())),
    )


def worker_drill_refusal(job: Job, *, node: int | None, notice_s: float | None) -> str | None:
    """Why the worker of a job cannot leave as in a preemption now; None if it can.

    It receives the notice in the response to its reports, and leaves on all nodes.
    """
    if node:
        return "its worker leaves on all nodes together; omit the node"
    if not notice_s or notice_s < MIN_WORKER_NOTICE_S:
        return (
            "its launcher cannot take a node away, so that the worker has to leave by itself, and "
            f"needs a notice of at least {MIN_WORKER_NOTICE_S:g} s; without notice, terminate a machine at the provider"
        )
    if not job.is_training:
        return "its worker has not reported training in this attempt, so that it cannot be asked to leave"
    return None


def group_of_drill(job: Job, *, node: int | None, group: str | None) -> str:
    """The node group that a drill takes, by default the last one.

    Empty if all nodes leave together.
    """
    groups = job.nodes_by_group
    if len(groups) < 2:
        return ""
    return group or next((name for name, mine in groups.items() if node in mine), [*groups][-1])


def group_drill_refusal(
    job: Job, group: str, now: datetime, *, notice_s: float | None
) -> str | None:
    """Why a node group of a job cannot leave as in a preemption now; None if it can.

    Node 0 receives the request in the response to its reports, and passes it on to the nodes of the group.
    """
    if notice_s and notice_s < MIN_WORKER_NOTICE_S:
        return (
            f"its worker receives the notice within {MIN_WORKER_NOTICE_S:g} s; "
            f"give it at least as much, or none with --no-notice"
        )
    if not job.is_training:
        return "its worker has not reported training in this attempt, so that it cannot be asked to leave"
    nodes = job.nodes_by_group[group]
    if missing := [node for node in nodes if node in {*job.absent_nodes, *job.lost_nodes}]:
        is_are = "is" if len(missing) == 1 else "are"
        return f"{job.node_text(missing)} {is_are} already missing; wait until SkyPilot has replaced the group"
    if any(drill.nodes == tuple(nodes) and _is_open(drill, now) for drill in job.pending_drills):
        return f"group {group} is being preempted already"
    return None


def group_drills(job: Job, attempt: int, now: datetime) -> Sequence[GroupDrill]:
    """The groups that the worker of an attempt has to end.

    The worker of a later attempt is not asked, as in `ms_until_drill`.
    """
    return [
        GroupDrill(drill.at, drill.nodes, max(0.0, (drill.leave_at - now).total_seconds()))
        for drill in job.pending_drills
        if drill.nodes
        and drill.leave_at
        and drill.leaving_attempt == attempt
        and _is_open(drill, now)
    ]


def _is_open(drill: PendingDrill, now: datetime) -> bool:
    """Whether a drill of a group may still reach the worker, with what is left of its notice."""
    assert drill.leave_at, "a worker that leaves has a deadline"
    has_notice = drill.leave_at > drill.at
    return now < (drill.leave_at if has_notice else drill.at + MAX_DELIVERY)


def ms_until_drill(job: Job, attempt: int, now: datetime) -> int | None:
    """Milliseconds in which the worker of an attempt has to leave for a drill; None without one.

    The worker of a later attempt, which may report before its nodes are recorded, is not asked. Nor is one whose
    time is over: it would lose the steps that its notice was to save.
    """
    times = [
        drill.leave_at
        for drill in job.pending_drills
        if drill.leave_at
        and not drill.nodes
        and drill.leaving_attempt == attempt
        and drill.leave_at > now
    ]
    return (min(times) - now) // timedelta(milliseconds=1) if times else None


def drills_of_new_attempt(job: Job, at: datetime) -> tuple[PendingDrill, ...]:
    """The pending drills after the nodes of another attempt are ready.

    A drill concerns the nodes that were running when it was requested. Those of a group other than the first one may
    outlive the attempt, and know of the drill.
    """
    return tuple(
        drill
        for drill in job.pending_drills
        if drill.at >= at
        or (
            drill.nodes
            and LEADER not in drill.nodes
            and drill.leaving_attempt > job.attempts_before_launch
        )
    )


def keeps_state(facts: Iterable[Event], attempt: int) -> bool:
    """Whether the other nodes of an attempt keep the state of a lost one, as reported."""
    starts = [
        fact.keeps_state
        for fact in facts
        if isinstance(fact, TrainingStarted) and fact.attempt == attempt
    ]
    return bool(starts) and starts[-1]


def lost_work_refusal(
    facts: Iterable[Event], step: int, *, notice_s: float | None, has_store: bool
) -> str | None:
    """Why a drill would lose work, with the remedy; None if it would not.

    `facts` are the events of the job, and `step` is the newest step that it has reached.
    """
    if not has_store:
        lost = f" and lose {_steps(step)}" if step else ""
        return (
            f"it has no checkpoint store, so it would start again from the beginning{lost}; "
            "set holdfast.checkpoint.store in its job file, or accept the loss with --force"
        )
    kept_step, saving_s, where = 0, 0.0, "the start"
    for fact in facts:
        match fact:
            case TrainingStarted(step=restored, held_at=None) if restored > kept_step:
                kept_step, where = restored, f"the checkpoint at step {restored:,}"
            case CheckpointCommitted(at=at, snapshot_at=snapshot_at, step=saved):
                saving_s = max(0.0, (at - snapshot_at).total_seconds())
                if saved >= kept_step:
                    kept_step, where = saved, f"the checkpoint at step {saved:,}"
            case _:
                pass
    at_risk = step - kept_step
    if at_risk <= 0 or (notice_s and notice_s >= saving_s):
        return None
    since = f"{_steps(at_risk)} since {where}"
    if not notice_s:
        return (
            f"without notice it would lose {since}; give it notice, such as --notice 30s, "
            "or accept the loss with --force"
        )
    return (
        f"its newest checkpoint took {saving_s:.1f} s to save, so that a notice of {notice_s:g} s may lose "
        f"{since}; give it more notice, or accept the loss with --force"
    )


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"


def with_drill_mark(job: Job, event: Event) -> Event:
    """The event, with `drill` set if it is a loss that a user requested.

    `job` is the job before the event.
    """
    if not isinstance(event, CapacityLost | NodeLost) or event.cause not in PREEMPTION_CAUSES:
        return event  # A program that fails during a drill has failed.
    is_drill = any(_explains(drill, event) for drill in job.pending_drills)
    if isinstance(event, NodeLost) and event.with_node is not None:
        is_drill = event.with_node in job.drilled_nodes
    if isinstance(event, CapacityLost) and job.counted_nodes:
        # The nodes that were not replaced end the attempt: it is one loss with theirs.
        is_drill = set(job.counted_nodes) <= set(job.drilled_nodes)
    return replace(event, drill=True) if is_drill else event


def without_drill(
    pending: tuple[PendingDrill, ...], loss: CapacityLost | NodeLost
) -> tuple[PendingDrill, ...]:
    """The drills that are pending after a loss. One drill explains the loss of one node."""
    explained = [drill for drill in pending if _explains(drill, loss)]
    if isinstance(loss, NodeLost):
        # A request for this node is a better explanation than one for any node. A worker leaves on all nodes, whose
        # groups are lost one after the other.
        explained = sorted(explained, key=lambda drill: drill.node is None and not drill.nodes)[:1]
        explained = [drill for drill in explained if drill.nodes or not drill.leaving_attempt]
    return tuple(drill for drill in pending if drill not in explained)


def _explains(drill: PendingDrill, loss: CapacityLost | NodeLost) -> bool:
    """Whether a drill can have caused a loss: it is of that node, and was requested before."""
    if drill.nodes:
        is_same_node = (loss.node if isinstance(loss, NodeLost) else LEADER) in drill.nodes
    else:
        is_same_node = not isinstance(loss, NodeLost) or drill.node in (None, loss.node)
    is_in_time = drill.leave_at is None or loss.at <= drill.leave_at + LEAVE_LATE
    return is_same_node and is_in_time and drill.at <= loss.at
