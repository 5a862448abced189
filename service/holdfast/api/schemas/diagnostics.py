"""What travels over the API when two jobs are put side by side. The client reads these, too.

What travels over the API when somebody asks what the trouble of a job looks like. The client reads these, too.

What is answered about the lines of logs.

What travels over the API about proofs. The client reads these, too; nothing here knows how the service works.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from holdfast.api.schemas.base import Schema


class DifferenceOut(Schema):
    """One thing that is other."""

    kind: str = Field(
        description="transport, machines, stack, code, configuration, packages or surroundings."
    )
    key: str = Field(description="Its place in the manifest; of a package, its name after `lock.`.")
    before: Any = Field(description="In the first job; null where it was not told.")
    after: Any = Field(description="In the other job.")


class DiffOut(Schema):
    """Two jobs side by side."""

    before: str = Field(description="Id of the first.")
    after: str = Field(description="Id of the other.")
    steps_per_hour_before: float | None = Field(
        description="Steps that were kept, for each hour of useful time; null while there are none."
    )
    steps_per_hour_after: float | None
    differences: list[DifferenceOut] = Field(description="What explains most, first.")


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


class MatchOut(BaseModel):
    """A line in which something was found."""

    attempt: int
    node: int
    rank: int | None = Field(description="null for what the node itself printed.")
    line: int = Field(description="Number of the line in that log, from 1.")
    offset: int = Field(description="Byte where the line begins, for `offset` of logs/text.")
    text: str = Field(description="The line, or what is around the match in a longer one.")
    start: int = Field(description="Where the match begins in `text`, in characters.")
    end: int
    is_cut: bool = Field(description="Whether the line is longer than `text`.")


class SeenOut(BaseModel):
    """A rank that was heard of."""

    rank: int
    node: int = Field(description="In whose log it was.")


class RankPresenceOut(BaseModel):
    """Who was heard of in the logs of an attempt."""

    attempt: int
    world_size: int | None = Field(
        description="Ranks that there should be; null where nobody said it."
    )
    seen: list[SeenOut]
    missing: list[int] = Field(description="Ranks that were not heard of.")


class MatchPage(BaseModel):
    """Some lines, in the order of attempts, nodes, ranks and lines."""

    matches: list[MatchOut]
    searched_bytes: int
    next: str | None = Field(
        description="Pass as `cursor` to go on; null at the end. Without matches, too: a long search takes several answers."
    )


_MOST = 2**63 - 1


class ProofIn(Schema):
    """What the logs of two jobs say, step by step."""

    against: str = Field(max_length=64, description="Id of the same job that was left alone.")
    batches: int = Field(
        ge=0, le=_MOST, description="Steps of ranks whose batches were compared; 0: none were."
    )
    other_batches: int = Field(ge=0, le=_MOST, description="Those that were given another batch.")
    values: int = Field(ge=0, le=_MOST, description="Numbers that both logged at the same step.")
    other_values: int = Field(ge=0, le=_MOST, description="Those of them that were others.")


class ProofOut(Schema):
    """A job that was interrupted beside the same job that was left alone."""

    at: datetime = Field(description="When they were compared.")
    against: str = Field(description="Id of the job that was left alone.")
    holds: bool = Field(
        description="Whether both came to the same weights and numbers, and were given the same data."
    )
    why: str = Field(description="The same as a sentence.")
    steps: int
    preemptions: int = Field(description="Of the job that was interrupted.")
    weights_sha256: str = Field(description="Of its last step; empty where none was saved.")
    other_weights_sha256: str
    numbers: dict[str, float | None] = Field(description="What it logged last, by name.")
    other_numbers: dict[str, float | None]
    batches: int = Field(
        description="Steps of ranks whose batches were compared; 0: they were not."
    )
    other_batches: int
    values: int = Field(description="Numbers that both logged at the same step.")
    other_values: int
    versions: dict[str, str] = Field(description="Of what the job was made with, by name.")
    by: str = Field(description="Who compared them; empty where nobody has to say who they are.")
