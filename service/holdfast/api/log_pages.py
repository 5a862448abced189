"""What a search in logs answers."""

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


class MatchPage(BaseModel):
    """Some lines, in the order of attempts, nodes, ranks and lines."""

    matches: list[MatchOut]
    searched_bytes: int
    next: str | None = Field(
        description="Pass as `cursor` to go on; null at the end. Without matches, too: a long search takes several answers."
    )
