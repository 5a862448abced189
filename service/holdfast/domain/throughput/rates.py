"""Rates of training and the parts of a step, from the runtime metrics of a worker. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast_worker.protocol.reports import RuntimeMetricName

RATE_METRICS: Final = (
    RuntimeMetricName.STEPS,
    RuntimeMetricName.SAMPLES,
    RuntimeMetricName.TOKENS,
    RuntimeMetricName.MFU,
    RuntimeMetricName.STALLED,
    RuntimeMetricName.DATA_SECONDS,
    RuntimeMetricName.COMPUTE_SECONDS,
    RuntimeMetricName.COMMUNICATION_SECONDS,
    RuntimeMetricName.SAVING_SECONDS,
)
"""The metrics on which rates rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRates:
    """Rates while training: without stalls, and without the time before and between attempts.

    What a worker did not measure is None.
    """

    at: datetime | None = None
    """When it was measured; None for a mean over all attempts."""
    steps_per_s: float
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    """Share of the peak of the GPUs."""
    stalled: float | None = None
    """Share of time in stalls, which are not part of the rates."""
    data_s: float | None = None
    """Part of a step that waits for data; likewise the other parts, which add up to the time of a step."""
    compute_s: float | None = None
    communication_s: float | None = None
    saving_s: float | None = None
    rest_s: float | None = None
    """What is left of a step where its parts were not all measured: usually computation and communication."""


def training_rates(
    values: Mapping[str, float | None], at: datetime | None = None
) -> TrainingRates | None:
    """The rates in the values of a point, or in means of them; None without steps."""
    steps_per_s = values.get(RuntimeMetricName.STEPS)
    if not steps_per_s:
        return None
    data_s = values.get(RuntimeMetricName.DATA_SECONDS)
    saving_s = values.get(RuntimeMetricName.SAVING_SECONDS)
    compute_s = values.get(RuntimeMetricName.COMPUTE_SECONDS)
    rest_s = None
    if compute_s is None and saving_s is not None:
        rest_s = max(0.0, 1 / steps_per_s - saving_s - (data_s or 0.0))
    return TrainingRates(
        at=at,
        steps_per_s=steps_per_s,
        samples_per_s=values.get(RuntimeMetricName.SAMPLES),
        tokens_per_s=values.get(RuntimeMetricName.TOKENS),
        mfu=values.get(RuntimeMetricName.MFU),
        stalled=values.get(RuntimeMetricName.STALLED),
        data_s=data_s,
        compute_s=compute_s,
        communication_s=None
        if compute_s is None
        else values.get(RuntimeMetricName.COMMUNICATION_SECONDS),
        saving_s=saving_s,
        rest_s=rest_s,
    )
