"""What travels over the API about checkpoints. The client reads these, too; nothing here knows how the service works."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


class MetricOut(Schema):
    """The last value that was logged under a name."""

    value: float | None = Field(description="Null where it was not finite.")
    step: int = Field(description="After how many steps it was logged.")


class PassedOverOut(Schema):
    """An attempt that could not use a checkpoint."""

    attempt: int
    reason: str


class CheckpointOut(Schema):
    """One try to save, and what became of it."""

    step: int
    checkpoint: str | None = Field(description="Its name in the store; null if it failed.")
    state: str = Field(description="complete, failed, damaged, abandoned or removed.")
    detail: str = Field(description="Why it is not complete, in words; empty if it is.")
    attempt: int = Field(description="Who wrote it.")
    at: datetime = Field(description="When it was durable, or given up.")
    taken_at: datetime | None = Field(description="When its state was taken; null if it failed.")
    size_bytes: int | None = Field(description="Null if it failed, as all below that is null.")
    stall_ms: int | None = Field(description="How long training stood still for it.")
    upload_ms: int | None = Field(description="From the end of the snapshot until the commit.")
    weights_sha256: str | None
    metrics: dict[str, MetricOut] = Field(description="What the script had logged, by name.")
    restored_by: list[int] = Field(description="Attempts that went on from it.")
    passed_over: list[PassedOverOut] = Field(description="Attempts that could not use it.")
    removed_at: datetime | None = Field(description="Null while it is in the store.")
    superseded: bool = Field(
        default=False,
        description="Whether it is complete, but no longer kept by the retention rule: it waits for removal, or the worker has removed it without a report.",
    )


class BestOut(Schema):
    """The best checkpoints by a metric."""

    metric: str
    mode: str = Field(description="min or max.")
    count: int


class RetentionPolicyOut(Schema):
    """Which complete checkpoints stay."""

    last: int
    every_steps: int | None = Field(description="Null: none for its step alone.")
    best: BestOut | None = Field(description="Null: none for its worth.")


class RetentionOut(Schema):
    """How old checkpoints are removed, and how that goes."""

    by: str = Field(description="service, or worker, which does not tell what it has removed.")
    keep: RetentionPolicyOut
    tidied_at: datetime | None = Field(
        description="When the service was through with it last; null before the first time."
    )
    trouble: str | None = Field(
        description="Why nothing is removed; null while that goes well, and where the worker does it."
    )
    since: datetime | None = Field(description="Since when there is trouble.")


class CheckpointPage(Schema):
    """Some tries to save, newest first."""

    checkpoints: list[CheckpointOut]
    next: str | None = Field(description="Pass as `cursor` for the next page; null on the last.")
    tidying: RetentionOut | None = Field(description="Null for a job without a checkpoint store.")
    notes: list[str] = Field(description="What is other than one may think, as sentences.")
