"""What travels over the API about prices. The client reads these, too.

What travels over the API before anything runs: losses, cadences, sizes. The client reads these, too.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


class PriceOut(Schema):
    """What one node of a kind costs at a place, in micro-dollars an hour."""

    cloud: str | None = Field(description="Null for an estimate that is of no cloud in particular.")
    region: str | None
    zone: str | None = Field(description="Null where the price holds for the whole region.")
    instance_type: str | None
    accelerator: str | None
    count: float = Field(description="Accelerators of the node.")
    spot_micros_per_hour: int | None = Field(
        description="Null where there is no market, or nobody knows of one; never 0."
    )
    on_demand_micros_per_hour: int | None = Field(
        description="Null where nobody knows it; never 0."
    )
    saved_micros_per_hour: int | None = Field(
        description="On demand less spot; null where one of the two is not known."
    )
    as_of: datetime = Field(description="When the source had it so.")
    is_old: bool = Field(
        default=False, description="Older than 90 days, and therefore listed after the others."
    )
    source: str
    tier: str = Field(description="live, catalog, snapshot or estimate.")
    is_estimate: bool
    repairs: list[str] = Field(description="Rules that dropped one of its two prices as a lie.")


class RefusedPriceOut(Schema):
    """A row of a price list that is not believed."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    accelerator: str
    count: str
    on_demand: str = Field(description="As it is written, in dollars an hour.")
    spot: str
    rule: str
    reason: str


class PricesOut(Schema):
    """What is known of prices, the cheapest accelerator first; old prices after the others."""

    prices: list[PriceOut]
    left_out: int = Field(description="How many more there are beyond `limit`.")
    refused_count: int = Field(description="How many rows about this are not believed.")
    refused: list[RefusedPriceOut] = Field(description="Those rows, if they were asked for.")


class PriceChangeOut(Schema):
    """A price from a moment on, until the next change."""

    at: datetime
    micros_per_hour: int


class PriceSeriesOut(Schema):
    """What one kind of node has cost as spot at one place."""

    now: PriceOut
    lowest_micros_per_hour: int | None = Field(description="Null where nobody tells a history.")
    mean_micros_per_hour: int | None = Field(description="Weighted by how long each price held.")
    highest_micros_per_hour: int | None
    changes: list[PriceChangeOut] = Field(
        description="The price when the time begins, and each change after that; empty where nobody tells."
    )


class PriceHistoryOut(Schema):
    """How spot prices have changed, place by place, the cheapest of now first; old prices after the others."""

    since: datetime
    until: datetime
    series: list[PriceSeriesOut]
    left_out: int = Field(
        description="How many places more there are, beyond `limit` or as the clouds took too long to tell of the others."
    )


class LossEstimateOut(Schema):
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
