"""User commands on an existing job: the resulting events, or the refusal. Pure.

Also whether another job may continue from a job's checkpoints, and the command that resumes a paused job. An ended job writes
nothing more and keeps its newest checkpoints as long as its store exists, so an answer about it stays valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import ROUND_UP, Decimal
from typing import Any, Final

from holdfast.domain.checkpoints.history import CheckpointAttempt
from holdfast.domain.events import (
    CancelRequested,
    Event,
    Finished,
    Guard,
    LimitsChanged,
    Outcome,
    PauseRequested,
    PriorityChanged,
    Resized,
    ResumeRequested,
)
from holdfast.domain.jobfile.limits import MICROS_PER_USD, Limits, parse_seconds
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.validation import with_changes
from holdfast.domain.jobs.guards import grace_micros, trip
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance
from holdfast.errors import BadLimits, NotPossibleNow, ValidationIssue


def parent_refusal(
    job: Job, spec: JobSpec, newest: CheckpointAttempt | None, store: str
) -> str | None:
    """Why a job with this store cannot continue from another job, with the remedy, or None.

    `spec` and `newest` belong to the other job; `newest` is its newest complete checkpoint, None
    without one.
    """
    kept = spec.holdfast.checkpoint
    if job.state is not State.ENDED:
        return (
            f"job {job.id} is {job.status}; a job can only continue from an ended job; "
            f"wait until it ends, or run holdfast cancel {job.id}"
        )
    if kept is None or newest is None:
        return f"job {job.id} has no checkpoint to continue from; remove from"
    if kept.store.rstrip("/") != store.rstrip("/"):
        return f"job {job.id} stores its checkpoints in {kept.store}; set store to that"
    return None


def retry_refusal(job: Job, newest: CheckpointAttempt | int | None) -> str | None:
    """Why a job cannot be retried now, and the remedy; None if it can.

    `newest` is its newest complete checkpoint or the step of it, None without one.
    """
    match job.state:
        case State.PAUSED:
            return f"it is paused; resume it with: holdfast resume {job.id}"
        case State.ENDED:
            pass
        case _:
            return f"it is {job.state}; only ended jobs can be retried"
    if job.outcome is Outcome.SUCCEEDED:
        return f"it succeeded; submit a copy with: holdfast clone {job.id}"
    if newest is None:
        return f"it has no checkpoint to continue from; submit a copy with: holdfast clone {job.id}"
    return None


_SUGGESTED_FACTOR: Final = 2
"""Factor on the old limit in a suggested resume command."""
_CENT: Final = Decimal("0.01")
_OPTIONS: Final = {
    Guard.MAX_COST: "--max-cost",
    Guard.MAX_HOURLY_COST: "--max-hourly-cost",
    Guard.DEADLINE: "--deadline",
    Guard.MAX_DURATION: "--max-duration",
}
"""Options of `holdfast resume` for guards that would trip again with unchanged limits."""


def resume_command(job: Job, limits: Limits) -> str:
    """The command that resumes a job, with a raised limit if its guard needs one."""
    if job.guard is Guard.BUDGET:
        return f"once its budget allows it, resume with: holdfast resume {job.id}"
    option = _OPTIONS.get(job.guard) if job.guard else None
    words = f" {option} {_suggested_limit(job, limits)}" if option else ""
    return f"resume with: holdfast resume {job.id}{words}"


def _suggested_limit(job: Job, limits: Limits) -> str:
    """A limit twice the old one, so that about the original amount is left."""
    deadline = limits.deadline_at(job.submitted_at)
    match job.guard:
        case Guard.MAX_COST if limits.max_cost_usd is not None:
            return _dollars(limits.max_cost_usd * _SUGGESTED_FACTOR)
        case Guard.MAX_HOURLY_COST if limits.max_hourly_cost_usd is not None:
            return _dollars(limits.max_hourly_cost_usd * _SUGGESTED_FACTOR)
        case Guard.MAX_DURATION if limits.max_duration is not None:
            return _hours(_SUGGESTED_FACTOR * timedelta(seconds=parse_seconds(limits.max_duration)))
        case Guard.DEADLINE if deadline is not None:
            return _hours(_SUGGESTED_FACTOR * (deadline - job.submitted_at))
        case _:
            return "none"


def immediate_pause_reason(job: Job, limits: Limits, now: datetime) -> str | None:
    """Why a resumed job would pause again immediately, with the needed limit, or None."""
    resumed = advance(job, ResumeRequested(at=now))
    if tripped := trip(resumed, limits, now):
        return f"it would be stopped again immediately: {tripped.detail}; {_needed(job, tripped.guard, limits, now)}"
    cap, paid = limits.max_cost_micros, job.account.paid_micros
    needed = paid + grace_micros(job.micros_per_hour)
    if cap is not None and cap <= needed:
        return (
            f"it has cost ${_usd(paid)} and its nodes cost ${_usd(job.micros_per_hour)} an hour, so "
            f"max_cost_usd ${_usd(cap)} only covers saving; {_above(needed)}"
        )
    return None


def _needed(job: Job, guard: Guard, limits: Limits, now: datetime) -> str:
    match guard:
        case Guard.MAX_COST:
            return _above(job.account.paid_micros + grace_micros(job.micros_per_hour))
        case Guard.DEADLINE:
            return f"deadline must be after {now:%Y-%m-%d %H:%M:%SZ}, or more than {_span(now - job.submitted_at)}"
        case Guard.MAX_DURATION:
            had = timedelta(milliseconds=job.account.node_ms_by(now))
            return f"max_duration must be more than {_span(had)}"
        case Guard.MAX_FAILURES:
            return f"max_failures must be at least {max(job.failures, limits.max_failures) + 1}"
        case _:
            return "change its limits"


def _hours(span: timedelta) -> str:
    return f"{-(-span // timedelta(hours=1))}h"


def _above(micros: int) -> str:
    return f"max_cost_usd must be above {_usd(micros)}"


def _span(span: timedelta) -> str:
    return f"{int(span.total_seconds()) // 60 + 1}m"


def _usd(micros: int) -> str:
    """Dollars, rounded up to the cent."""
    return _dollars(Decimal(micros) / MICROS_PER_USD)


def _dollars(usd: Decimal) -> str:
    rounded = usd.quantize(_CENT, ROUND_UP)
    return f"{rounded.normalize():f}" if rounded == rounded.to_integral() else f"{rounded:f}"


def cancel(job: Job, now: datetime, reason: str, by: str = "") -> tuple[Event, ...]:
    """Cancel a job; no events if it is already stopping.

    A paused job has no nodes and ends immediately.
    """
    if job.state in {State.STOPPING, State.ENDED}:
        return ()
    request = CancelRequested(at=now, reason=reason, by=by)
    if job.state is not State.PAUSED:
        return (request,)
    return request, Finished(at=now, outcome=Outcome.CANCELLED, detail=reason)


def pause(job: Job, now: datetime, reason: str, by: str = "") -> tuple[Event, ...]:
    """Pause a job; no events if it is already pausing or paused.

    Raises:
        NotPossibleNow: The job is stopping or has ended.
    """
    if job.state in {State.PAUSING, State.PAUSED} and not job.paused_for:
        return ()
    if no := pause_refusal(job):
        raise NotPossibleNow(f"job {job.id} cannot be paused: {no}")
    return (PauseRequested(at=now, reason=reason, by=by),)


def resume(
    job: Job,
    limits: Limits,
    changes: Mapping[str, Any],
    now: datetime,
    *,
    reason: str,
    by: str = "",
    resized: Resized | None = None,
) -> tuple[Event, ...]:
    """Resume a job under `limits` with `changes`, and with the nodes of `resized` if given.

    Raises:
        NotPossibleNow: The job is not paused, or would pause again immediately.
        BadLimits: The changes are invalid.
    """
    if no := resume_refusal(job):
        raise NotPossibleNow(f"job {job.id} cannot be resumed: {no}")
    changed: tuple[Event, ...] = change_limits(job, limits, changes, now, by)
    if resized:
        changed = (*changed, replace(resized, at=now))
    for event in changed:
        job = advance(job, event)
    if no := immediate_pause_reason(job, job.limits or limits, now):
        raise NotPossibleNow(f"job {job.id} cannot be resumed: {no}")
    return *changed, ResumeRequested(at=now, reason=reason, by=by)


def change_limits(
    job: Job, limits: Limits, changes: Mapping[str, Any], now: datetime, by: str = ""
) -> tuple[Event, ...]:
    """Change limits; no events if they already have these values. null removes a limit.

    Raises:
        NotPossibleNow: The job has ended.
        BadLimits: The changes are invalid.
    """
    if no := limits_refusal(job):
        raise NotPossibleNow(f"the limits of job {job.id} cannot be changed: {no}")
    after = with_changes(limits, changes)
    deadline = after.deadline_at(job.submitted_at)
    if "deadline" in changes and deadline is not None and deadline <= now:
        why = f"{deadline:%Y-%m-%d %H:%M:%SZ} is in the past; write a future time, or a duration from the submission"
        raise BadLimits((ValidationIssue("#/deadline", why),))
    names = tuple(
        name for name in Limits.model_fields if getattr(after, name) != getattr(limits, name)
    )
    if not names:
        return ()
    written = after.model_dump(mode="json")
    return (LimitsChanged(at=now, limits=written, changed=names, by=by),)


def change_priority(job: Job, priority: int, now: datetime, by: str = "") -> tuple[Event, ...]:
    """Change the priority of a job in the queue; no events if it is unchanged.

    Raises:
        NotPossibleNow: The job has ended.
    """
    if job.state is State.ENDED:
        raise NotPossibleNow(f"the priority of job {job.id} cannot be changed: it has ended")
    if priority == job.priority:
        return ()
    return (PriorityChanged(at=now, priority=priority, by=by),)


def pause_refusal(job: Job) -> str | None:
    """Why a job cannot be paused now; None if it can."""
    match job.state:
        case State.PAUSING if job.paused_for:
            return None
        case State.PAUSING | State.PAUSED | State.STOPPING:
            return f"it is {job.state}"
        case State.ENDED:
            return "it has ended"
        case _:
            return None


def resume_refusal(job: Job) -> str | None:
    """Why a job cannot be resumed now; None if it can, as far as its limits allow."""
    match job.state:
        case State.PAUSED:
            return None
        case State.PAUSING:
            return "it is pausing, and its nodes may still run; try again when it is paused"
        case State.ENDED:
            return "it has ended"
        case _:
            return f"it is {job.state}; only paused jobs can be resumed"


def removal_refusal(job: Job) -> str | None:
    """Why a job cannot be removed now, and the remedy; None if it can."""
    if job.outcome is None:
        return f"it is {job.status}; only ended jobs can be removed; cancel it with: holdfast cancel {job.id}"
    if job.leftovers:
        return f"{job.warning}; stop the remaining resources first"
    return None


def limits_refusal(job: Job) -> str | None:
    """Why the limits of a job cannot be changed now; None if they can."""
    return "it has ended" if job.state is State.ENDED else None
