"""Forebears: jobs that have ended, and from whose checkpoints others go on. Pure.

An ended job writes nothing more, and its newest checkpoints stay as long as its store does: so what is found out about it once
stays true.

How a paused job is taken up again: the command for it, and whether it would be paused again at once. Pure.

What people may ask of a job that is there: the facts that follow from it, or why it cannot be. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    ResumeRequested,
)
from holdfast.domain.jobfile.limits import MICROS_PER_USD, Limits, seconds
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.validation import with_changes
from holdfast.domain.jobs.guards import grace_micros, trip
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance
from holdfast.errors import BadLimits, Flaw, NotPossibleNow


def parent_refusal(
    job: Job, spec: JobSpec, newest: CheckpointAttempt | None, store: str
) -> str | None:
    """Why a job with this store cannot go on from another, and what to do instead; None when it can.

    `spec` and `newest` are those of the other: its newest complete checkpoint, None where it has none.
    """
    kept = spec.holdfast.checkpoint
    if job.state is not State.ENDED:
        return (
            f"job {job.id} is {job.status}, and only what has ended can be gone on from; "
            f"wait until it has, or ask for that with holdfast cancel {job.id}"
        )
    if kept is None or newest is None:
        return f"job {job.id} has no checkpoint to go on from; leave from out"
    if kept.store.rstrip("/") != store.rstrip("/"):
        return f"job {job.id} keeps its checkpoints in {kept.store}; write that as store"
    return None


def why_no_retry(job: Job, newest: CheckpointAttempt | None) -> str | None:
    """Why a job cannot be retried now, and what to do instead; None when it can.

    `newest` is its newest complete checkpoint; None where it has none.
    """
    match job.state:
        case State.PAUSED:
            return f"it is paused; holdfast resume {job.id} takes it up again"
        case State.ENDED:
            pass
        case _:
            return f"it is {job.state}, and only what has ended can be retried"
    if job.outcome is Outcome.SUCCEEDED:
        return f"it has succeeded; holdfast clone {job.id} submits it once more"
    if newest is None:
        return f"it has no checkpoint to go on from; holdfast clone {job.id} submits it once more"
    return None


_MORE: Final = 2
"""How many times the old limit the command has that a sentence offers."""
_CENT: Final = Decimal("0.01")
_OPTIONS: Final = {
    Guard.MAX_COST: "--max-cost",
    Guard.MAX_HOURLY_COST: "--max-hourly-cost",
    Guard.DEADLINE: "--deadline",
    Guard.MAX_DURATION: "--max-duration",
}
"""Of `holdfast resume`, for what would trip again if nothing were changed."""


def resume_command(job: Job, limits: Limits) -> str:
    """The command that takes a job up again, with the limit that has to be another one, if any has."""
    if job.guard is Guard.BUDGET:
        return f"once its budget has room, holdfast resume {job.id} takes it up again"
    option = _OPTIONS.get(job.guard) if job.guard else None
    words = f" {option} {_more(job, limits)}" if option else ""
    return f"holdfast resume {job.id}{words} takes it up again"


def _more(job: Job, limits: Limits) -> str:
    """A limit of which there would be about as much left as there was in all."""
    deadline = limits.deadline_at(job.submitted_at)
    match job.guard:
        case Guard.MAX_COST if limits.max_cost_usd is not None:
            return _dollars(limits.max_cost_usd * _MORE)
        case Guard.MAX_HOURLY_COST if limits.max_hourly_cost_usd is not None:
            return _dollars(limits.max_hourly_cost_usd * _MORE)
        case Guard.MAX_DURATION if limits.max_duration is not None:
            return _hours(_MORE * timedelta(seconds=seconds(limits.max_duration)))
        case Guard.DEADLINE if deadline is not None:
            return _hours(_MORE * (deadline - job.submitted_at))
        case _:
            return "none"


def why_not(job: Job, limits: Limits, now: datetime) -> str | None:
    """Why a paused job would be paused again at once, and what its limit has to be; None when it would not."""
    resumed = advance(job, ResumeRequested(at=now))
    if tripped := trip(resumed, limits, now):
        return f"it would be stopped again at once, as {tripped.detail}; {_needed(job, tripped.guard, limits, now)}"
    cap, paid = limits.max_cost_micros, job.account.paid_micros
    needed = paid + grace_micros(job.micros_per_hour)
    if cap is not None and cap <= needed:
        return (
            f"it has cost ${_usd(paid)}, and its nodes cost ${_usd(job.micros_per_hour)} an hour, so that "
            f"max_cost_usd ${_usd(cap)} leaves no more than the time to save; {_above(needed)}"
        )
    return None


def _needed(job: Job, guard: Guard, limits: Limits, now: datetime) -> str:
    match guard:
        case Guard.MAX_COST:
            return _above(job.account.paid_micros + grace_micros(job.micros_per_hour))
        case Guard.DEADLINE:
            return f"deadline has to be after {now:%Y-%m-%d %H:%M:%SZ}, or more than {_span(now - job.submitted_at)}"
        case Guard.MAX_DURATION:
            had = timedelta(milliseconds=job.account.node_ms_by(now))
            return f"max_duration has to be more than {_span(had)}"
        case Guard.MAX_FAILURES:
            return f"max_failures has to be at least {max(job.failures, limits.max_failures) + 1}"
        case _:
            return "its limits have to be other ones"


def _hours(span: timedelta) -> str:
    return f"{-(-span // timedelta(hours=1))}h"


def _above(micros: int) -> str:
    return f"max_cost_usd has to be above {_usd(micros)}"


def _span(span: timedelta) -> str:
    return f"{int(span.total_seconds()) // 60 + 1}m"


def _usd(micros: int) -> str:
    """Dollars to the cent, never less than they are."""
    return _dollars(Decimal(micros) / MICROS_PER_USD)


def _dollars(usd: Decimal) -> str:
    rounded = usd.quantize(_CENT, ROUND_UP)
    return f"{rounded.normalize():f}" if rounded == rounded.to_integral() else f"{rounded:f}"


def cancel(job: Job, now: datetime, reason: str, by: str = "") -> tuple[Event, ...]:
    """The end that was asked for; nothing where it is on its way. Of a paused job nothing runs, so that it is over at once."""
    if job.state in {State.STOPPING, State.ENDED}:
        return ()
    asked = CancelRequested(at=now, reason=reason, by=by)
    if job.state is not State.PAUSED:
        return (asked,)
    return asked, Finished(at=now, outcome=Outcome.CANCELLED, detail=reason)


def pause(job: Job, now: datetime, reason: str, by: str = "") -> tuple[Event, ...]:
    """The pause that was asked for; nothing where it is on its way.

    Raises:
        NotPossibleNow: the job is to end, or has.
    """
    if job.state in {State.PAUSING, State.PAUSED}:
        return ()
    if no := why_no_pause(job):
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
) -> tuple[Event, ...]:
    """The resume that was asked for, under `limits` as they are changed.

    Raises:
        NotPossibleNow: the job is not paused, or would be paused again at once.
        BadLimits: the changes cannot be.
    """
    if no := why_no_resume(job):
        raise NotPossibleNow(f"job {job.id} cannot be resumed: {no}")
    changed = change_limits(job, limits, changes, now, by)
    for event in changed:
        job = advance(job, event)
    if no := why_not(job, job.limits or limits, now):
        raise NotPossibleNow(f"job {job.id} cannot be resumed: {no}")
    return *changed, ResumeRequested(at=now, reason=reason, by=by)


def change_limits(
    job: Job, limits: Limits, changes: Mapping[str, Any], now: datetime, by: str = ""
) -> tuple[Event, ...]:
    """The change of limits that was asked for; nothing where they are so already. null takes a limit away.

    Raises:
        NotPossibleNow: the job has ended.
        BadLimits: the changes cannot be.
    """
    if no := why_no_limits(job):
        raise NotPossibleNow(f"the limits of job {job.id} cannot be changed: {no}")
    after = with_changes(limits, changes)
    deadline = after.deadline_at(job.submitted_at)
    if "deadline" in changes and deadline is not None and deadline <= now:
        told = f"{deadline:%Y-%m-%d %H:%M:%SZ} is over; write a time to come, or a duration from the submission"
        raise BadLimits((Flaw("#/deadline", told),))
    names = tuple(
        name for name in Limits.model_fields if getattr(after, name) != getattr(limits, name)
    )
    if not names:
        return ()
    written = after.model_dump(mode="json")
    return (LimitsChanged(at=now, limits=written, changed=names, by=by),)


def why_no_pause(job: Job) -> str | None:
    """Why a job cannot be paused now; None when it can."""
    match job.state:
        case State.PAUSING | State.PAUSED | State.STOPPING:
            return f"it is {job.state}"
        case State.ENDED:
            return "it has ended"
        case _:
            return None


def why_no_resume(job: Job) -> str | None:
    """Why a job cannot be resumed now; None when it can, as far as its limits allow."""
    match job.state:
        case State.PAUSED:
            return None
        case State.PAUSING:
            return (
                "it is pausing, and its nodes are not known to be gone; try again when it is paused"
            )
        case State.ENDED:
            return "it has ended"
        case _:
            return f"it is {job.state}, and only what is paused can be resumed"


def why_no_removal(job: Job) -> str | None:
    """Why a job cannot be removed now, and what to do instead; None when it can."""
    if job.outcome is None:
        return f"it is {job.status}, and only ended jobs can be removed; holdfast cancel {job.id} ends it"
    if job.leftovers:
        return f"{job.warning}; stop what is left first"
    return None


def why_no_limits(job: Job) -> str | None:
    """Why the limits of a job cannot be changed now; None when they can."""
    return "it has ended" if job.state is State.ENDED else None
