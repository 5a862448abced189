"""What people may ask of a job that is there: the facts that follow from it, or why it cannot be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.domain.events import (
    CancelRequested,
    Event,
    Finished,
    LimitsChanged,
    Outcome,
    PauseRequested,
    ResumeRequested,
)
from holdfast.domain.job import Job, State
from holdfast.domain.lifecycle import advance
from holdfast.domain.limits import Limits
from holdfast.domain.mistakes import with_changes
from holdfast.domain.resuming import why_not
from holdfast.errors import BadLimits, Flaw, NotPossibleNow


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
    changed = relimit(job, limits, changes, now, by)
    for event in changed:
        job = advance(job, event)
    if no := why_not(job, job.limits or limits, now):
        raise NotPossibleNow(f"job {job.id} cannot be resumed: {no}")
    return *changed, ResumeRequested(at=now, reason=reason, by=by)


def relimit(
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
