"""Equivalence of two runs: an interrupted job compared with an uninterrupted one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from holdfast.domain.attempts import collect_attempts
from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory
from holdfast.domain.events import Event, Outcome, RunDescribed, RunsCompared
from holdfast.domain.events.values import Versions
from holdfast.domain.jobs.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSteps:
    """Counts from a step-by-step comparison of two runs' logs, made by the client."""

    batches: int
    """Rank steps whose batches were compared; 0 if no batches were recorded."""
    other_batches: int
    """Compared rank steps in which the two runs received different batches."""
    values: int
    """Values that both runs logged at the same step."""
    other_values: int
    """Compared values that differ."""


def comparison_refusal(job: Job, reference: Job) -> str | None:
    """Why two jobs cannot be compared; None if they can."""
    for one in (job, reference):
        if one.outcome is not Outcome.SUCCEEDED:
            return f"job {one.id} is {one.status}; only succeeded jobs can be compared"
    if job.id == reference.id:
        return "both names refer to one job; name a second run of it without preemptions"
    if reference.preemptions:
        return f"job {reference.id} was also preempted; compare with a run without preemptions"
    return None


def compare_runs(
    job: Job,
    facts: Iterable[Event],
    others: Iterable[Event],
    steps: LoggedSteps,
    at: datetime,
    *,
    against: str,
    by: str,
    version: str,
) -> RunsCompared:
    """Build the event from the history of both jobs and the comparison of their steps."""
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
        batches=steps.batches,
        other_batches=steps.other_batches,
        values=steps.values,
        other_values=steps.other_values,
        replaced_nodes=sum(
            loss.replaced is not None
            for attempt in collect_attempts(facts, {})
            for loss in attempt.node_losses
        ),
        versions=_versions(facts, version),
        by=by,
    )


def _newest(facts: Iterable[Event]) -> CheckpointAttempt | None:
    saves = CheckpointHistory()
    for seq, fact in enumerate(facts, 1):
        saves.apply(seq, fact)
    return saves.newest()


def _versions(facts: Iterable[Event], version: str) -> Versions:
    """Software versions and device that the newest attempt reported."""
    manifests = [fact.manifest for fact in facts if isinstance(fact, RunDescribed)]
    known = manifests[-1] if manifests else {}
    keys = ("python", "torch", "cuda", "nccl", "device", "git_commit", "script_sha256")
    return {
        "holdfast": version,
        **{key: str(known[key]) for key in keys if known.get(key) is not None},
    }
