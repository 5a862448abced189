"""Views of checkpoints and of their retention."""

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
from holdfast.store.journal import RecordedEvent
from holdfast.store.retention_queue import RetentionStatus

_REMOVED: Final = {
    Removal.SUPERSEDED: "the retention policy no longer keeps it",
    Removal.OFF_LINEAGE: "a later attempt resumed from an earlier step",
    Removal.DEAD_UPLOAD: "it was incomplete",
    Removal.FOUND_GONE: "it was missing from the store",
}
_SUPERSEDED: Final = {
    RetentionOwner.SERVICE: "waiting for deletion",
    RetentionOwner.WORKER: "the worker deletes it at a save, without a report",
}


def checkpoint_history(facts: Iterable[RecordedEvent]) -> CheckpointHistory:
    """Build the checkpoint history of a job from its events."""
    saves = CheckpointHistory()
    for fact in facts:
        saves.apply(fact.seq, fact.event)
    return saves


def checkpoint_view(
    save: CheckpointAttempt, *, removed_by: RetentionOwner | None = None
) -> CheckpointOut:
    """Convert one attempted save.

    `removed_by` deletes it once the retention policy no longer keeps it.
    """
    return CheckpointOut(
        step=save.step,
        checkpoint=save.name,
        state=save.fate,
        detail=_SUPERSEDED[removed_by] if removed_by else _detail(save),
        attempt=save.attempt,
        at=save.at,
        taken_at=save.snapshot_at,
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
            assert save.abandoned_by
            return f"attempt {save.abandoned_by.attempt} resumed from step {save.abandoned_by.step}"
        case Fate.REMOVED:
            assert save.removal
            return _REMOVED[save.removal]


def retention_view(spec: JobSpec, status: RetentionStatus | None) -> RetentionOut | None:
    """Describe the deletion of a job's old checkpoints; `status` None: not by the service."""
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is None:
        return None
    known = status or RetentionStatus()
    return RetentionOut(
        by=RetentionOwner.SERVICE if status else RetentionOwner.WORKER,
        keep=_policy_view(checkpoint.keep),
        tidied_at=known.last_run_at,
        trouble=known.error,
        since=known.since,
    )


def _policy_view(keep: RetentionPolicy) -> RetentionPolicyOut:
    best = keep.best
    return RetentionPolicyOut(
        last=keep.last,
        every_steps=keep.every_steps,
        best=BestOut(metric=best.metric, mode=best.mode, count=best.count) if best else None,
    )


def checkpoint_notes(
    tidying: RetentionOut | None, saves: Sequence[CheckpointAttempt], waiting: int
) -> Iterator[str]:
    """List notes on unexpected retention behavior."""
    committed = [save for save in saves if save.name]
    if not tidying or not committed:
        return
    complete = sum(save.fate is Fate.COMPLETE for save in saves)
    if waiting and tidying.by == RetentionOwner.WORKER:
        yield (
            f"{waiting} of {complete} complete checkpoints are superseded: the retention policy no longer keeps them, "
            "and the worker deletes them at its saves without a report, so they may be gone"
        )
    elif waiting:
        yield (
            f"{waiting} of {complete} complete checkpoints wait for deletion: the retention policy no longer keeps them, "
            "and the service deletes each one HOLDFAST_TIDY_GRACE_S (300 s by default) later"
        )
    best = tidying.keep.best
    logged = sorted({name for save in committed for name in save.metrics})
    if best and best.metric not in logged:
        near = difflib.get_close_matches(best.metric, logged, n=1, cutoff=0.6)
        known = (
            f"did the script mean {near[0]!r}?" if near else f"logged metrics: {', '.join(logged)}"
        )
        yield (
            f"no checkpoint is kept as best: none has the metric {best.metric!r} of keep.best; "
            f"{known if logged else 'the script logs nothing'}"
        )
