"""Schemas of output files; shared with the client."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


class OutputFileOut(Schema):
    """One output file."""

    number: int = Field(description="Its number in requests.")
    path: str = Field(description="Path below the working directory of the job.")
    size_bytes: int
    sha256: str
    parts: int = Field(description="Number of its parts, each of which one request returns.")


class LeftOutFileOut(Schema):
    """A matching file that was not collected."""

    path: str
    reason: str = Field(description="Why, as a sentence without its subject.")


class OutputsOut(Schema):
    """The output files of the newest attempt that has ended by itself."""

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
