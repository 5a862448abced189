"""What travels over the API about budgets. The client reads these, too."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictFloat, StrictInt, field_validator

from holdfast.api.schema import Schema

Percent = Annotated[int, Field(ge=1, le=100)]


class BudgetIn(Schema):
    """What a project or a user may spend in a month."""

    monthly_usd: StrictInt | StrictFloat | str = Field(
        description="US dollars, exact to a millionth."
    )
    warn_at: list[Percent] = Field(
        default_factory=lambda: [50, 80, 95],
        description="Percent of it at which people are warned, each once in a month.",
    )
    on_reached: str = Field(
        default="pause",
        pattern="^(pause|warn)$",
        description="pause: its jobs are paused and none is begun; warn: it is only said.",
    )

    @field_validator("warn_at")
    @classmethod
    def _in_order(cls, percents: list[int]) -> list[int]:
        return sorted(set(percents))


class BudgetOut(Schema):
    """A budget, and what is spent of it in this month."""

    scope: str = Field(description="project or user.")
    name: str
    monthly_micros: int
    warn_at: list[int]
    on_reached: str
    month: str = Field(description="As in 2026-03, in UTC.")
    spent_micros: int = Field(description="In this month, until now.")
    committed_micros: int = Field(
        description="What the nodes that stand will cost until their workers have saved and left."
    )
    micros_per_hour: int = Field(description="What the nodes that stand cost together.")
    warned_at: list[int] = Field(description="Of `warn_at`, those that people were told of.")
    is_spent: bool = Field(description="Whether no more is left than the time to save.")
    simulated: bool = Field(description="True if any price of this month in it is simulated.")
    is_price_estimate: bool = Field(
        description="True if nobody told a price of this month in it, which is taken to be high."
    )
