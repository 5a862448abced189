"""Checkpoints as the API shows them, and how they are tidied up."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast_worker.protocol.policies import RetentionOwner

from holdfast.api.schemas.checkpoints import (
    BestOut,
    CheckpointOut,
    MetricOut,
    PassedOverOut,
    RetentionOut,
    RetentionPolicyOut,
)
from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory, Fate
from holdfast.domain.events import Removal
from holdfast.domain.jobfile.retention_policy import RetentionPolicy
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.store.journal import Recorded
from holdfast.store.retention_queue import RetentionStatus

_REMOVED: Final = {
    Removal.SUPERSEDED: "the job file does not ask to keep it any more",
    Removal.OFF_LINEAGE: "a later attempt went on from an earlier step",
    Removal.DEAD_UPLOAD: "it was never whole",
    Removal.FOUND_GONE: "it was found to be gone from the store",
}
_SUPERSEDED: Final = {
    RetentionOwner.SERVICE: "waits for removal",
    RetentionOwner.WORKER: "the worker removes it at a save, and reports no removal",
}


def told(facts: Iterable[Recorded]) -> CheckpointHistory:
    """All tries to save, by the facts of one job."""
    saves = CheckpointHistory()
    for fact in facts:
        saves.tell(fact.seq, fact.event)
    return saves


def checkpoint_view(
    save: CheckpointAttempt, *, removed_by: RetentionOwner | None = None
) -> CheckpointOut:
    """One try to save; `removed_by`: who removes it, where the retention rule no longer keeps it."""
    return CheckpointOut(
        step=save.step,
        checkpoint=save.name,
        state=save.fate,
        detail=_SUPERSEDED[removed_by] if removed_by else _detail(save),
        attempt=save.attempt,
        at=save.at,
        taken_at=save.taken_at,
        size_bytes=save.size_bytes,
        stall_ms=save.stall_ms,
        upload_ms=save.upload_ms,
        weights_sha256=save.weights_sha256,
        metrics={
            name: MetricOut(value=metric.value, step=metric.step)
            for name, metric in save.metrics.items()
        },
        restored_by=list(save.restored_by),
        passed_over=[
            PassedOverOut(attempt=found.attempt, reason=found.reason) for found in save.passed_over
        ],
        removed_at=save.removed_at,
        superseded=removed_by is not None,
    )


def _detail(save: CheckpointAttempt) -> str:
    match save.fate:
        case Fate.COMPLETE:
            return ""
        case Fate.FAILED:
            return save.failure
        case Fate.DAMAGED:
            last = save.passed_over[-1]
            return f"attempt {last.attempt} could not use it: {last.reason}"
        case Fate.ABANDONED:
            assert save.left_behind
            return f"attempt {save.left_behind.attempt} went on from step {save.left_behind.step}"
        case Fate.REMOVED:
            assert save.removal
            return _REMOVED[save.removal]


def tidying_view(spec: JobSpec, tidiness: RetentionStatus | None) -> RetentionOut | None:
    """How old checkpoints of a job are removed; `tidiness` None: not by the service."""
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is None:
        return None
    known = tidiness or RetentionStatus()
    return RetentionOut(
        by=RetentionOwner.SERVICE if tidiness else RetentionOwner.WORKER,
        keep=_keep(checkpoint.keep),
        tidied_at=known.tidied_at,
        trouble=known.trouble,
        since=known.since,
    )


def _keep(keep: RetentionPolicy) -> RetentionPolicyOut:
    best = keep.best
    return RetentionPolicyOut(
        last=keep.last,
        every_steps=keep.every_steps,
        best=BestOut(metric=best.metric, mode=best.mode, count=best.count) if best else None,
    )


def checkpoint_notes(
    tidying: RetentionOut | None, saves: Sequence[CheckpointAttempt], waiting: int
) -> Iterator[str]:
    """What is other than one may think."""
    committed = [save for save in saves if save.name]
    if not tidying or not committed:
        return
    complete = sum(save.fate is Fate.COMPLETE for save in saves)
    if waiting and tidying.by == RetentionOwner.WORKER:
        yield (
            f"{waiting} of {complete} complete checkpoints are superseded: keep does not ask for them any more, "
            "and the worker removes them at its saves without a report, so that they may be gone"
        )
    elif waiting:
        yield (
            f"{waiting} of {complete} complete checkpoints wait for removal: keep does not ask for them any more, "
            "and the service removes each of them HOLDFAST_TIDY_GRACE_S (300 s by default) later"
        )
    best = tidying.keep.best
    logged = sorted({name for save in committed for name in save.metrics})
    if best and best.metric not in logged:
        near = difflib.get_close_matches(best.metric, logged, n=1, cutoff=0.6)
        known = f"did the script mean {near[0]!r}?" if near else f"logged are {', '.join(logged)}"
        yield (
            f"none is kept for its worth: no checkpoint has {best.metric!r}, by which keep.best tells; "
            f"{known if logged else 'the script logs nothing'}"
        )
