"""Schemas of prices and planning; shared with the client."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


class PriceOut(Schema):
    """Price of one node at a place, in micro-dollars per hour."""

    cloud: str | None = Field(description="Null for an estimate without a cloud.")
    region: str | None
    zone: str | None = Field(description="Null if the price applies to the whole region.")
    instance_type: str | None
    accelerator: str | None
    count: float = Field(description="Accelerators of the node.")
    spot_micros_per_hour: int | None = Field(
        description="Null without a known spot market; never 0."
    )
    on_demand_micros_per_hour: int | None = Field(description="Null if unknown; never 0.")
    saved_micros_per_hour: int | None = Field(
        description="On demand less spot; null if one is unknown."
    )
    as_of: datetime = Field(description="Date of the price at its source.")
    is_old: bool = Field(default=False, description="Older than 90 days and therefore listed last.")
    source: str
    tier: str = Field(description="live, catalog, snapshot or estimate.")
    is_estimate: bool
    repairs: list[str] = Field(
        description="Rules that rejected one of its two prices as implausible."
    )


class RefusedPriceOut(Schema):
    """A rejected row of a price list."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    accelerator: str
    count: str
    on_demand: str = Field(description="As written, in dollars per hour.")
    spot: str
    rule: str
    reason: str


class PricesOut(Schema):
    """Known prices, cheapest accelerator first; old prices last."""

    prices: list[PriceOut]
    left_out: int = Field(description="Number of prices beyond `limit`.")
    refused_count: int = Field(description="Number of matching rows rejected as implausible.")
    refused: list[RefusedPriceOut] = Field(description="Those rows, if requested.")


class PriceChangeOut(Schema):
    """A price from a time until the next change."""

    at: datetime
    micros_per_hour: int


class PriceSeriesOut(Schema):
    """Spot price history of one kind of node at one place."""

    now: PriceOut
    lowest_micros_per_hour: int | None = Field(description="Null without a history.")
    mean_micros_per_hour: int | None = Field(description="Weighted by duration.")
    highest_micros_per_hour: int | None
    changes: list[PriceChangeOut] = Field(
        description="The price at the start and each change after it; empty without a history."
    )


class PriceHistoryOut(Schema):
    """Spot price histories by place, lowest current price first; old prices last."""

    since: datetime
    until: datetime
    series: list[PriceSeriesOut]
    left_out: int = Field(
        description="Number of further places, beyond `limit` or not queried in time."
    )


class LossEstimateOut(Schema):
    """Estimated loss from a failure."""

    micros_per_day: int = Field(description="Cost of all nodes per day.")
    price_source: str = Field(description="Source of the price.")
    price_as_of: datetime | None = Field(
        default=None, description="Date of the price at its source; null if the caller gave it."
    )
    is_price_old: bool = Field(
        default=False, description="Older than 90 days, as no newer price is known."
    )
    is_price_estimate: bool = Field(description="True if the price is unknown and assumed high.")
    hours_without: float = Field(description="Loss without checkpoints.")
    micros_without: int
    roughly_micros_without: int = Field(
        description="Rounded down to half its leading power of ten."
    )
    hours_with: float = Field(description="Maximum loss with checkpoints at this interval.")
    micros_with: int
    roughly_micros_with: int


class CadenceOut(Schema):
    """Checkpoint intervals and their waste."""

    best_s: float = Field(description="The interval with the least waste.")
    waste: float = Field(description="Share of the time without progress at that interval.")
    asked_waste: float | None = Field(
        description="The share at the requested interval; null without one."
    )
    usual_s: dict[str, list[int]] = Field(
        description="Common intervals by kind of job: lower and upper limit."
    )


class CandidateOut(Schema):
    """An accelerator that fits a model."""

    accelerator: str
    peak_tflops: int = Field(description="In half precision; training does not reach it.")
    on_demand_micros_per_hour: int | None = Field(
        description="Price of one at the cheapest known place; null if unknown."
    )
    spot_micros_per_hour: int | None
    as_of: datetime | None = Field(
        default=None, description="Date of the older of the two prices; null without prices."
    )
    is_old: bool = Field(
        default=False, description="Older than 90 days, as no newer price is known."
    )


class AdviceOut(Schema):
    """Accelerators for a model, and whether spot nodes suit the job."""

    parameters: int
    memory_bytes: int = Field(description="Memory for training with Adam, without activations.")
    how: str = Field(description="Distribution of the model over accelerators.")
    fits: list[CandidateOut]
    others: list[CandidateOut] = Field(description="Other accelerators, for comparison.")
    spot: bool = Field(description="Whether spot nodes suit the job.")
    reasons: list[str] = Field(description="Reasons against spot nodes; empty if they suit.")
