"""What travels over the API about proofs. The client reads these, too; nothing here knows how the service works."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schema import Schema

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
