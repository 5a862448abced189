"""What travels over the API when somebody asks what the trouble of a job looks like. The client reads these, too."""

from __future__ import annotations

from pydantic import Field

from holdfast.api.schema import Schema


class EvidenceOut(Schema):
    """From what a hint follows."""

    attempt: int
    node: int | None = Field(description="null for what is known without a log.")
    rank: int | None = Field(description="null where nobody knows.")
    text: str = Field(description="A line of a log, or the numbers.")


class HintOut(Schema):
    """What it looks like, and what to do."""

    trouble: str = Field(description="Its name, such as `gpu_memory`.")
    looks: str = Field(description="What it looks like, in a sentence.")
    remedy: str = Field(description="What to do about it.")
    page: str | None = Field(description="Of the documentation; null where none says more.")
    evidence: list[EvidenceOut]


class HintsOut(Schema):
    """The hints on a job, the most certain first."""

    hints: list[HintOut]
    attempt: int | None = Field(description="Whose logs were read; null where none were.")
    unread: str | None = Field(description="Why logs were not read; null where they were.")
