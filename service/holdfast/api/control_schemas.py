"""What travels over the API when a running job is paused, resumed, or given other limits. The client reads these, too."""

from __future__ import annotations

from pydantic import Field, StrictBool, StrictFloat, StrictInt

from holdfast.api.schema import Schema

_WITHOUT = "null takes it away."
Amount = StrictInt | StrictFloat | str


class LimitsOut(Schema):
    """Where a job is given up or paused, as people write it; null where nothing limits."""

    max_cost_usd: str | None = Field(description="What its nodes may cost in all, in US dollars.")
    max_hourly_cost_usd: str | None = Field(description="The same for an hour.")
    deadline: str | None = Field(description="A duration from its submission, or a time.")
    max_duration: str | None = Field(description="How long it may have nodes, in all.")
    max_wait: str = Field(description="How long it may be without nodes at a stretch.")
    max_failures: int = Field(description="How often the program itself may fail.")
    max_fruitless: int = Field(
        description="How many placements in a row may come to no step that was not reached before."
    )
    max_stall: str = Field(description="How long its ranks may make no step: auto, off, or so.")


class LimitsIn(Schema):
    """Limits that are to be other ones. What is not named stays as it is."""

    max_cost_usd: Amount | None = Field(default=None, description=f"US dollars. {_WITHOUT}")
    max_hourly_cost_usd: Amount | None = Field(default=None, description=f"US dollars. {_WITHOUT}")
    deadline: str | None = Field(
        default=None,
        description=f"A duration from the submission, or a time with its zone. {_WITHOUT}",
    )
    max_duration: str | None = Field(default=None, description=f"A duration. {_WITHOUT}")
    max_wait: str | None = Field(default=None, description="A duration; null: 24h.")
    max_failures: StrictInt | None = Field(default=None, description="1 to 100; null: 3.")
    max_fruitless: StrictInt | None = Field(default=None, description="1 to 1000; null: 10.")
    max_stall: str | None = Field(
        default=None,
        description="auto, off, or a duration; null: auto. The program knows it from the next launch on.",
    )


class PauseIn(Schema):
    """Why a job is to be paused."""

    reason: str = Field(default="paused on request", max_length=500)


class CloneIn(Schema):
    """What is to be other in a copy of a job."""

    name: str | None = Field(
        default=None, min_length=1, max_length=200, description="Name instead of the job's."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Values over those of `envs`.")
    secrets: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="All secrets of the job, by name: their values are not copied.",
        json_schema_extra={"writeOnly": True},
    )
    limits: LimitsIn = Field(default_factory=LimitsIn, description="Limits that are to be other.")
    force: StrictBool = Field(
        default=False, description="Accept a job that would lose its work on spot nodes."
    )


class ResumeIn(Schema):
    """How a paused job is to go on."""

    reason: str = Field(default="resumed on request", max_length=500)
    limits: LimitsIn = Field(
        default_factory=LimitsIn, description="Limits that are to be other ones from now on."
    )
