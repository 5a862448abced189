"""What travels over the API before anything runs: losses, cadences, sizes. The client reads these, too."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schema import Schema


class LossOut(Schema):
    """What a failure takes."""

    micros_per_day: int = Field(description="What all nodes cost in a day.")
    price_source: str = Field(description="Who says so.")
    price_as_of: datetime | None = Field(
        default=None, description="When the source had the price; null where the caller gave it."
    )
    is_price_old: bool = Field(
        default=False, description="Older than 90 days, as no newer price is known."
    )
    is_price_estimate: bool = Field(description="True where nobody told it, so that it is high.")
    hours_without: float = Field(description="Lost without checkpoints.")
    micros_without: int
    roughly_micros_without: int = Field(
        description="As people say it: rounded down to half its leading power of ten."
    )
    hours_with: float = Field(description="Lost at most with a checkpoint so often.")
    micros_with: int
    roughly_micros_with: int


class CadenceOut(Schema):
    """How often to save."""

    best_s: float = Field(description="The interval that wastes least.")
    waste: float = Field(description="Share of all time that is no progress then.")
    asked_waste: float | None = Field(
        description="The same for the interval that was asked about; null where none was."
    )
    usual_s: dict[str, list[int]] = Field(
        description="By habit, by kind of job: two numbers, from and to."
    )


class CandidateOut(Schema):
    """One accelerator that fits."""

    accelerator: str
    peak_tflops: int = Field(description="In half precision; no training reaches it.")
    on_demand_micros_per_hour: int | None = Field(
        description="Of one, in the cheapest place that is known; null where nobody tells."
    )
    spot_micros_per_hour: int | None
    as_of: datetime | None = Field(
        default=None, description="Date of the older of the two prices; null where there is none."
    )
    is_old: bool = Field(
        default=False, description="Older than 90 days, as no newer price is known."
    )


class AdviceOut(Schema):
    """What fits a model, and a job."""

    parameters: int
    memory_bytes: int = Field(description="What training holds with Adam, without activations.")
    how: str = Field(description="How the model is laid over accelerators.")
    fits: list[CandidateOut]
    others: list[CandidateOut] = Field(description="The rest, to compare.")
    spot: bool = Field(description="Whether spot nodes fit the job.")
    reasons: list[str] = Field(description="Against them; empty where they fit.")
