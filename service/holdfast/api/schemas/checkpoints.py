"""Schemas of checkpoints and output files; shared with the client."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


class MetricOut(Schema):
    """The last value that was logged under a name."""

    value: float | None = Field(description="Null if it was not finite.")
    step: int = Field(description="Number of steps before it was logged.")


class PassedOverOut(Schema):
    """An attempt that could not use a checkpoint."""

    attempt: int
    reason: str


class CheckpointOut(Schema):
    """One attempted save and its result."""

    step: int
    checkpoint: str | None = Field(description="Its name in the store; null if it failed.")
    state: str = Field(description="complete, failed, damaged, abandoned or removed.")
    detail: str = Field(description="Why it is not complete; empty if it is.")
    attempt: int = Field(description="Attempt that wrote it.")
    at: datetime = Field(description="Time at which it was durable or abandoned.")
    taken_at: datetime | None = Field(description="Time of the snapshot; null if it failed.")
    size_bytes: int | None = Field(
        description="Null if it failed, like all fields below that are null."
    )
    stall_ms: int | None = Field(description="Time for which training stopped.")
    upload_ms: int | None = Field(description="From the end of the snapshot until the commit.")
    weights_sha256: str | None
    metrics: dict[str, MetricOut] = Field(description="Values that the script had logged, by name.")
    restored_by: list[int] = Field(description="Attempts that resumed from it.")
    passed_over: list[PassedOverOut] = Field(description="Attempts that could not use it.")
    removed_at: datetime | None = Field(description="Null while it is in the store.")
    superseded: bool = Field(
        default=False,
        description="Whether it is complete but no longer kept by the retention policy: it waits for deletion, or the worker has deleted it without a report.",
    )


class BestOut(Schema):
    """The best checkpoints by a metric."""

    metric: str
    mode: str = Field(description="min or max.")
    count: int


class RetentionPolicyOut(Schema):
    """The retention policy: which complete checkpoints are kept."""

    last: int
    every_steps: int | None = Field(description="Null: none are kept for their step alone.")
    best: BestOut | None = Field(description="Null: none are kept for a metric.")


class RetentionOut(Schema):
    """Deletion of old checkpoints and its state."""

    by: str = Field(description="service, or worker, which does not report deletions.")
    keep: RetentionPolicyOut
    tidied_at: datetime | None = Field(
        description="When the service last completed a deletion run; null before the first one."
    )
    trouble: str | None = Field(
        description="Why nothing is deleted; null while deletion works, or if the worker deletes."
    )
    since: datetime | None = Field(description="Start of the failure.")


class CheckpointPage(Schema):
    """A page of attempted saves, newest first."""

    checkpoints: list[CheckpointOut]
    next: str | None = Field(description="Pass as `cursor` for the next page; null on the last.")
    tidying: RetentionOut | None = Field(description="Null for a job without a checkpoint store.")
    notes: list[str] = Field(description="Notes on unexpected retention behavior, as sentences.")


class OutputFileOut(Schema):
    """One output file."""

    number: int = Field(description="Its number in requests.")
    node: int = Field(default=0, description="Number of the node that it is from.")
    path: str = Field(
        description="Path below the working directory of the job; for nodes other than 0, with the prefix node-N/."
    )
    size_bytes: int
    sha256: str
    parts: int = Field(description="Number of its parts, each of which one request returns.")


class LeftOutFileOut(Schema):
    """A matching file that was not collected."""

    node: int = Field(default=0, description="Number of the node that it is on.")
    path: str
    reason: str = Field(description="Why, as a sentence without its subject.")


class OutputsOut(Schema):
    """The output files of all nodes of the newest attempt that has ended by itself."""

    patterns: list[str] = Field(description="Patterns of the job file; empty: none are collected.")
    epoch: int | None = Field(
        description="Fencing token of the attempt; null before an attempt has left files, like the next three fields."
    )
    attempt: int | None = Field(description="Also null if the launcher does not number attempts.")
    exit_code: int | None = Field(description="Exit code of the attempt.")
    collected_at: datetime | None
    size_bytes: int = Field(description="Bytes of all files.")
    files: list[OutputFileOut]
    left_out: list[LeftOutFileOut] = Field(description="At most 100 files.")
    left_out_count: int = Field(description="Number of all files that were left out.")
