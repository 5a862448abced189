"""What the API shows of removed jobs."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schema import Schema


class RemovalOut(Schema):
    """A job that was removed."""

    job_id: str
    removed_at: datetime
    checkpoints: str | None = Field(
        description="Its part of the checkpoint store; null for a job without a store."
    )
    removes_checkpoints: bool = Field(description="Whether its checkpoints are removed as well.")
    done_at: datetime | None = Field(
        description="When its last row and file were removed; null before."
    )
    trouble: str | None = Field(
        description="Why the last try left files, which are tried again; null if none failed."
    )
