"""What travels over the API about prices. The client reads these, too."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schema import Schema


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
