"""Forebears: jobs that have ended, and from whose checkpoints others go on. Pure.

An ended job writes nothing more, and its newest checkpoints stay as long as its store does: so what is found out about it once
stays true.
"""

from __future__ import annotations

from holdfast.domain.events import Outcome
from holdfast.domain.job import Job, State
from holdfast.domain.saves import Save
from holdfast.domain.spec import JobSpec


def why_no_forebear(job: Job, spec: JobSpec, newest: Save | None, store: str) -> str | None:
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


def why_no_retry(job: Job, newest: Save | None) -> str | None:
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
