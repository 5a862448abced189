"""Proofs: a job that was interrupted beside the same job that was left alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory
from holdfast.domain.events import Event, Outcome, RunDescribed, RunsCompared
from holdfast.domain.events.values import Versions
from holdfast.domain.jobs.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSteps:
    """What logs of two runs say, step by step. Nobody but who has read both can tell."""

    batches: int
    """Steps of ranks whose batches were compared; 0: none were written down."""
    other_batches: int
    """Those of them in which the two were given another batch."""
    values: int
    """Numbers that both runs logged at the same step."""
    other_values: int
    """Those of them that were others."""


def why_no_proof(job: Job, straight: Job) -> str | None:
    """Why two jobs cannot be compared; None when they can."""
    for one in (job, straight):
        if one.outcome is not Outcome.SUCCEEDED:
            return f"job {one.id} is {one.status}, and only what has succeeded can be compared"
    if job.id == straight.id:
        return "a job is always like itself; name the same job that was left alone"
    if straight.preemptions:
        return f"job {straight.id} was interrupted, too; compare with one that was left alone"
    return None


def compared(
    job: Job,
    facts: Iterable[Event],
    others: Iterable[Event],
    heard: LoggedSteps,
    at: datetime,
    *,
    against: str,
    by: str,
    version: str,
) -> RunsCompared:
    """The fact that follows from what is known of both jobs, and from what was heard of their steps."""
    facts = list(facts)
    mine, other = _newest(facts), _newest(others)
    return RunsCompared(
        at=at,
        against=against,
        steps=mine.step if mine else 0,
        preemptions=job.preemptions,
        weights_sha256=(mine.weights_sha256 or "") if mine else "",
        other_weights_sha256=(other.weights_sha256 or "") if other else "",
        numbers={name: metric.value for name, metric in mine.metrics.items()} if mine else {},
        other_numbers={name: metric.value for name, metric in other.metrics.items()}
        if other
        else {},
        batches=heard.batches,
        other_batches=heard.other_batches,
        values=heard.values,
        other_values=heard.other_values,
        versions=_versions(facts, version),
        by=by,
    )


def _newest(facts: Iterable[Event]) -> CheckpointAttempt | None:
    saves = CheckpointHistory()
    for seq, fact in enumerate(facts, 1):
        saves.tell(seq, fact)
    return saves.newest()


def _versions(facts: Iterable[Event], version: str) -> Versions:
    """Of what the job was made with, as its newest attempt told it."""
    told = [fact.manifest for fact in facts if isinstance(fact, RunDescribed)]
    known = told[-1] if told else {}
    words = ("python", "torch", "cuda", "nccl", "device", "git_commit", "script_sha256")
    return {"holdfast": version, **{w: str(known[w]) for w in words if known.get(w) is not None}}
