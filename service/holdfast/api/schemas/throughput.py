"""Schemas of throughput and of the expected end of a job; shared with the client."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


class RatesOut(Schema):
    """Rates while training, without stalls; null where the worker did not measure them."""

    at: datetime | None = Field(
        default=None, description="When it was measured; null for a mean over all attempts."
    )
    steps_per_s: float
    samples_per_s: float | None = Field(default=None, description="Over all ranks.")
    tokens_per_s: float | None = Field(default=None, description="Over all ranks.")
    mfu: float | None = Field(
        default=None, description="Share of the peak of the GPUs that the model uses, 0 to 1."
    )
    stalled: float | None = Field(
        default=None, description="Share of time in stalls, which are not part of the rates."
    )
    data_s: float | None = Field(
        default=None, description="Seconds of a step in which it waits for data."
    )
    compute_s: float | None = Field(
        default=None, description="Seconds of a step that are no other part of it."
    )
    communication_s: float | None = Field(
        default=None, description="Seconds of a step in which it only waits for gradients."
    )
    saving_s: float | None = Field(
        default=None, description="Seconds of a step for which saves hold it up."
    )
    rest_s: float | None = Field(
        default=None,
        description="Seconds of a step whose use is not measured, usually computation and communication; "
        "null if all parts are.",
    )


class EtaOut(Schema):
    """The expected end of a job, with the interruptions that are still to come."""

    p10: datetime | None = Field(
        default=None, description="It ends earlier with a probability of 10 %; null without one."
    )
    p50: datetime | None = Field(default=None, description="Likewise, 50 %.")
    p90: datetime | None = Field(default=None, description="Likewise, 90 %.")
    interruptions: float | None = Field(
        default=None, description="Mean number of further interruptions."
    )
    as_of: datetime | None = Field(default=None, description="When it was estimated.")
    is_planned: bool = Field(
        default=False, description="Whether it is the forecast of the job's plan."
    )
    reason: str | None = Field(
        default=None, description="Why there is none, as a clause; null if there is one."
    )


class ThroughputOut(Schema):
    """Throughput of a job over all its attempts."""

    newest: RatesOut | None = Field(
        description="The newest rates; null if the newest attempt reported none."
    )
    mean: RatesOut | None = Field(description="Means over all attempts; null without any.")
    wall_steps_per_s: float | None = Field(
        description="Kept steps per second since the job first trained, including stalls, lost work and all time without nodes; "
        "null before that."
    )
    training_step_s: float | None = Field(
        description="Training time of a step with its stalls, on which the expected end rests; null if not measured."
    )
    eta: EtaOut
