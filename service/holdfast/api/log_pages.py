"""What is answered about the lines of logs."""

from __future__ import annotations

from pydantic import BaseModel, Field


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


class RollOut(BaseModel):
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
