"""Nodes and ranks of an attempt that change while its other nodes keep running. Pure.

The launcher reports lost and replaced nodes, and the worker reports whether their ranks run on other nodes. The two arrive in any
order, and the state and its detail follow from both.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.events import (
    PREEMPTION_CAUSES,
    CapacityLost,
    NodeLost,
    NodeReplaced,
    RanksReplaced,
    TrainingStarted,
)
from holdfast.domain.jobs.drills import without_drill
from holdfast.domain.jobs.job import IN_TRAINING, Job, State
from holdfast.domain.jobs.transitions import TRANSITIONS


def in_training(job: Job) -> Job:
    """The job whose newest attempt has begun to train, on all its nodes or on fewer."""
    if not job.hosted_nodes:
        return replace(job, state=TRANSITIONS[State.STARTING, TrainingStarted], detail="")
    degraded = replace(job, state=State.DEGRADED)
    return replace(degraded, detail=degraded.lost_nodes_text)


def with_replaced_ranks(job: Job, event: RanksReplaced) -> Job:
    """The job after ranks of its newest attempt were replaced, in part on other nodes."""
    hosted = tuple(sorted(set(event.hosted_nodes)))
    # Ranks move back only to a replacement, which the launcher may report later.
    replaced = set(job.hosted_nodes) - set(hosted)
    changed = replace(
        job,
        step=max(job.step, event.step),
        lost_nodes=tuple(node for node in job.lost_nodes if node not in replaced),
        hosting=hosted,
        hosting_attempt=event.attempt if hosted else 0,
    )
    if job.state not in IN_TRAINING or changed.hosted_nodes == job.hosted_nodes:
        return changed
    whole = TRANSITIONS[job.state, RanksReplaced]
    changed = replace(changed, state=State.DEGRADED if changed.hosted_nodes else whole)
    is_shown = bool(changed.hosted_nodes) or job.detail == job.lost_nodes_text
    return replace(changed, detail=changed.lost_nodes_text) if is_shown else changed


def with_node_change(job: Job, event: NodeLost | NodeReplaced, state: State) -> Job:
    """The job after the loss or replacement of a node, with the new price in its account."""
    missing, preempted = set(job.lost_nodes) - {event.node}, set(job.preempted_nodes) - {event.node}
    drilled = set(job.drilled_nodes) - {event.node}
    changed = replace(
        job,
        state=state,
        node_changes=job.node_changes + 1,
        account=job.account.with_price_change(
            event.attempt, event.group, event.at, event.micros_per_hour
        ),
    )
    if isinstance(event, NodeLost):
        missing.add(event.node)
        # The notice of this node proves nothing about a later loss.
        noticed = tuple(attempt for attempt in job.noticed if attempt != event.attempt)
        changed = replace(changed, noticed=noticed)
    if isinstance(event, NodeLost) and event.cause in PREEMPTION_CAUSES:
        preempted.add(event.node)
        changed = with_preemption(changed, event)
        if event.drill:
            drilled.add(event.node)
    changed = replace(
        changed,
        lost_nodes=tuple(sorted(missing)),
        preempted_nodes=tuple(sorted(preempted)),
        drilled_nodes=tuple(sorted(drilled)),
    )
    # Keep the reason of a stop, and what ranks have reported since the loss.
    is_shown = isinstance(event, NodeLost) or job.detail == job.lost_nodes_text
    is_shown = is_shown and not job.is_leaving
    return replace(changed, detail=changed.lost_nodes_text) if is_shown else changed


def with_preemption(job: Job, event: CapacityLost | NodeLost) -> Job:
    """The job with one more preemption; a drill is no longer pending."""
    return replace(
        job,
        preemptions=job.preemptions + 1,
        drills=job.drills + event.drill,
        pending_drills=without_drill(job.pending_drills, event)
        if event.drill
        else job.pending_drills,
    )
