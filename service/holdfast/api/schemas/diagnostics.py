"""Schemas of comparisons, hints, log searches, rank presence and certificates.

The client uses them, too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from holdfast.api.schemas.base import Schema
from holdfast.api.schemas.throughput import RatesOut


class DifferenceOut(Schema):
    """One difference between two jobs."""

    kind: str = Field(
        description="transport, machines, stack, code, configuration, packages or surroundings."
    )
    key: str = Field(description="Its path in the manifest; of a package, its name after `lock.`.")
    before: Any = Field(description="In the first job; null if not reported.")
    after: Any = Field(description="In the other job.")


class DiffOut(Schema):
    """Comparison of two jobs."""

    before: str = Field(description="Id of the first job.")
    after: str = Field(description="Id of the other job.")
    steps_per_hour_before: float | None = Field(
        description="Kept steps per hour of useful time; null if there are none."
    )
    steps_per_hour_after: float | None
    rates_before: RatesOut | None = Field(
        default=None, description="Mean rates of the first job; null if it reported none."
    )
    rates_after: RatesOut | None = Field(default=None, description="Those of the other job.")
    differences: list[DifferenceOut] = Field(description="Most relevant first.")


class EvidenceOut(Schema):
    """Evidence for a hint."""

    attempt: int
    node: int | None = Field(description="null for evidence outside of logs.")
    rank: int | None = Field(description="null if unknown.")
    text: str = Field(description="A line of a log, or the numbers.")


class HintOut(Schema):
    """A probable problem and its remedy."""

    trouble: str = Field(description="Its name, such as `gpu_memory`.")
    looks: str = Field(description="Description of the problem, in a sentence.")
    remedy: str = Field(description="Remedy.")
    page: str | None = Field(description="Page of the documentation; null if none applies.")
    evidence: list[EvidenceOut]


class HintsOut(Schema):
    """The hints on a job, most certain first."""

    hints: list[HintOut]
    attempt: int | None = Field(description="Attempt whose logs were read; null if none were.")
    unread: str | None = Field(description="Why logs were not read; null if they were.")


class MatchOut(BaseModel):
    """A line with a match."""

    attempt: int
    node: int
    rank: int | None = Field(description="null for the node's own output.")
    line: int = Field(description="Number of the line in that log, from 1.")
    offset: int = Field(description="Byte offset of the line, for `offset` of logs/text.")
    text: str = Field(description="The line, or the part around the match in a longer one.")
    start: int = Field(description="Start of the match in `text`, in characters.")
    end: int
    is_cut: bool = Field(description="Whether the line is longer than `text`.")


class SeenOut(BaseModel):
    """A rank that has printed output."""

    rank: int
    node: int = Field(description="Node whose log contains it.")


class RankPresenceOut(BaseModel):
    """Ranks with output in the logs of an attempt."""

    attempt: int
    world_size: int | None = Field(description="Expected number of ranks; null if unknown.")
    seen: list[SeenOut]
    missing: list[int] = Field(description="Ranks without output.")


class MatchPage(BaseModel):
    """Matching lines, ordered by attempt, node, rank and line."""

    matches: list[MatchOut]
    searched_bytes: int
    next: str | None = Field(
        description="Pass as `cursor` to continue; null at the end. Also set without matches: a long search takes several responses."
    )


_MOST = 2**63 - 1


class ProofIn(Schema):
    """Step-by-step comparison of two jobs' logs."""

    against: str = Field(max_length=64, description="Id of the uninterrupted copy.")
    batches: int = Field(
        ge=0, le=_MOST, description="Steps of ranks whose batches were compared; 0: none were."
    )
    other_batches: int = Field(ge=0, le=_MOST, description="Those with a different batch.")
    values: int = Field(ge=0, le=_MOST, description="Numbers that both logged at the same step.")
    other_values: int = Field(ge=0, le=_MOST, description="Those of them that differ.")


class ProofOut(Schema):
    """Comparison of an interrupted job with an uninterrupted copy."""

    at: datetime = Field(description="Time of the comparison.")
    against: str = Field(description="Id of the uninterrupted copy.")
    holds: bool = Field(description="Whether both had the same weights, numbers and data.")
    why: str = Field(description="The result as a sentence.")
    steps: int
    preemptions: int = Field(description="Of the interrupted job.")
    replaced_nodes: int = Field(
        default=0,
        description="Its nodes that were replaced alone, while the processes of the others waited.",
    )
    weights_sha256: str = Field(description="Hash of its last step; empty if none was saved.")
    other_weights_sha256: str
    numbers: dict[str, float | None] = Field(description="Last logged values, by name.")
    other_numbers: dict[str, float | None]
    batches: int = Field(description="Steps of ranks whose batches were compared; 0: none were.")
    other_batches: int
    values: int = Field(description="Numbers that both logged at the same step.")
    other_values: int
    versions: dict[str, str] = Field(description="Versions of the software used, by name.")
    by: str = Field(description="Who compared them; empty on a service without users.")
