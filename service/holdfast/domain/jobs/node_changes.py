"""Nodes and ranks of an attempt that change while its other nodes keep running. Pure.

The launcher reports lost and replaced nodes, and the worker reports whether their ranks run on other nodes. The two arrive in any
order, and the state and its detail follow from both.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from holdfast.domain.events import (
    PREEMPTION_CAUSES,
    CapacityLost,
    Cause,
    NodeLost,
    NodeReplaced,
    NodesReady,
    RanksReplaced,
    TrainingStarted,
)
from holdfast.domain.jobs.drills import without_drill
from holdfast.domain.jobs.job import IN_TRAINING, Job, JobGroup, State
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
        absent_nodes=tuple(node for node in job.absent_nodes if node not in replaced),
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
        account=job.account.with_node_change(
            event.attempt, event.group, event.at, event.micros_per_hour
        ),
    )
    if isinstance(event, NodeLost) and event.cause is Cause.ENDED:
        return changed  # Nothing waits for a node whose program has ended.
    if isinstance(event, NodeReplaced):
        absent = tuple(node for node in job.absent_nodes if node != event.node)
        changed = replace(_with_group_price(changed, event), absent_nodes=absent)
    else:
        missing.add(event.node)
        # The notice of this node proves nothing about a later loss.
        noticed = tuple(attempt for attempt in job.noticed if attempt != event.attempt)
        changed = replace(changed, noticed=noticed)
    if isinstance(event, NodeLost) and event.cause in PREEMPTION_CAUSES:
        preempted.add(event.node)
        if event.with_node is None:
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


def groups_of(job: Job, event: NodesReady) -> tuple[JobGroup, ...]:
    """The node groups of a new attempt; an absent one keeps the price that it had before."""
    if not event.has_named_groups:
        return ()
    before = {group.name: group.micros_per_hour for group in job.groups}
    return tuple(
        JobGroup(
            name=part.name,
            nodes=part.nodes,
            micros_per_hour=part.micros_per_hour if running else before.get(part.name, 0),
        )
        for part, running in event.running_parts
    )


def _with_group_price(job: Job, event: NodeReplaced) -> Job:
    """The job with the price of a group that stands again, for all its nodes."""
    if event.placed is None or event.group >= len(job.groups):
        return job
    groups = list(job.groups)
    groups[event.group] = replace(groups[event.group], micros_per_hour=event.placed.micros_per_hour)
    micros = sum(group.micros_per_hour for group in groups)
    return replace(job, groups=tuple(groups), micros_per_hour=micros)


def with_missing_since(before: Job, job: Job, at: datetime) -> Job:
    """The job with the time since when its attempt waits for nodes; `before` the event at `at`."""
    if not (job.placed and job.awaited_nodes):
        return job if job.missing_since is None else replace(job, missing_since=None)
    if before.placed and before.attempt == job.attempt and before.missing_since:
        return job
    # A new attempt that lacks nodes continues the wait that began with the loss before it.
    since = at if before.placed and before.attempt == job.attempt else job.account.free_since
    return replace(job, missing_since=since)


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
