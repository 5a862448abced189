"""Which version of a job somebody has read: `ETag`, and `If-Match` of those who change only what they have seen."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

from holdfast.domain.jobs.job import Job
from holdfast.errors import PreconditionFailed

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description="Change the job only if this is still its ETag."),
]


def etag(job: Job) -> str:
    """The version of a job: the number of its last fact."""
    return f'"{job.seq}"'


def check(if_match: str | None, job: Job) -> None:
    """Let a change pass that names no version, or the one that there is.

    Raises:
        PreconditionFailed: it names others.
    """
    if if_match is None:
        return
    named = [tag.strip() for tag in if_match.split(",")]
    if "*" not in named and etag(job) not in named:
        raise PreconditionFailed(
            f"job {job.id} is at version {etag(job)}, not at {if_match}; read it again and decide anew"
        )
