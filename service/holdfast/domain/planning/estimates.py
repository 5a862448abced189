"""Planning before submission: accelerators, spot advice, losses, checkpoint intervals. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.errors import BadRequest

_UNITS: Final = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MIN_HOURS_LEFT: Final = 6.0
"""Hours to a deadline below which spot nodes are discouraged. A lower value recommends spot nodes too close to a
deadline; a higher value discourages jobs that would finish in time."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A range of model sizes with suitable accelerators."""

    below: int | None
    """Upper bound in parameters; None for no bound."""
    accelerators: Sequence[str]
    parallelism: str
    """Parallelism of the model over the accelerators."""


SIZES: Final = (
    ModelSize(10**9, ("T4", "L4"), "model replicated on each (DDP)"),
    ModelSize(10 * 10**9, ("A100",), "replicated while weights, gradients and optimizer states fit, otherwise sharded (FSDP)"),
    ModelSize(70 * 10**9, ("A100-80GB",), "sharded over several (FSDP)"),
    ModelSize(None, ("H100", "A100-80GB"), "tensor, pipeline and data parallelism (3D)"),
)  # fmt: skip
PEAK_TFLOPS: Final[Mapping[str, int]] = {"T4": 65, "L4": 121, "A100": 312, "A100-80GB": 312, "H100": 989}  # fmt: skip
"""Dense half-precision peak throughput from vendors. Training does not reach it, but the ratios are realistic."""


def parse_parameter_count(text: str) -> int:
    """Parse a parameter count such as `7B`, `350M` or `1.5b`.

    Raises:
        BadRequest: Not a parameter count.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise BadRequest(f"params: {text!r} is not a model size; write one such as 350M or 7B")
    return round(float(found[1]) * _UNITS.get(found[2].upper(), 1))


def model_size(count: int) -> ModelSize:
    """The model size range of a parameter count."""
    return next(size for size in SIZES if size.below is None or count < size.below)


def memory_bytes(count: int) -> int:
    """Training memory: half-precision weights and gradients, and Adam's three 4-byte copies."""
    return 16 * count


def on_demand_reasons(
    *, hours_left: float | None, has_checkpoints: bool, is_critical: bool
) -> Iterator[str]:
    """Reasons against spot nodes; empty if they are suitable."""
    if hours_left is not None and hours_left < MIN_HOURS_LEFT:
        yield f"only {hours_left:g} hours are left to the deadline, and spot nodes may be unavailable for that long"
    if not has_checkpoints:
        yield "without checkpoints, each capacity loss restarts the job at step 0"
    if is_critical:
        yield "the completion time of a job on spot nodes is unpredictable"


HOURS_PER_DAY: Final = 24
HABITUAL_INTERVALS_S: Final[Mapping[str, tuple[int, int]]] = {
    "research": (2 * 3600, 4 * 3600),
    "production": (30 * 60, 60 * 60),
    "spot": (15 * 60, 30 * 60),
}
"""Common checkpoint intervals: from, and to."""


@dataclass(frozen=True, slots=True)
class LossEstimate:
    """Loss from a failure, without and with checkpoints."""

    hours_without: float
    micros_without: int
    hours_with: float
    """Maximum loss in hours: the work since the newest checkpoint."""
    micros_with: int


def estimate_loss(micros_per_day: int, at_hour: float, every_hours: float | None) -> LossEstimate:
    """Loss from a failure at this hour with this checkpoint interval; None without checkpoints."""
    kept = at_hour if every_hours is None else min(at_hour, every_hours)
    return LossEstimate(
        hours_without=at_hour,
        micros_without=_paid(micros_per_day, at_hour),
        hours_with=kept,
        micros_with=_paid(micros_per_day, kept),
    )


def round_for_display(micros: int) -> int:
    """Round down to half of the leading power of ten, for display."""
    unit: int = max(1, 10 ** (len(str(micros)) - 1) // 2)
    return micros // unit * unit


@dataclass(frozen=True, slots=True)
class Cadence:
    """A checkpoint interval and its overhead."""

    best_s: float
    """Optimal interval by Young's formula."""
    waste: float
    """Share of time without progress at this interval: snapshots, and work lost to failures."""


def cadence(cost_s: float, between_failures_s: float) -> Cadence:
    """Optimal checkpoint interval for a snapshot stall and a mean time between failures.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974). Workers minimize the exact overhead,
    which differs if the stall is a large share of the mean time between failures.
    """
    best_s = math.sqrt(2 * cost_s * between_failures_s)
    return Cadence(best_s, share_wasted(best_s, cost_s, between_failures_s))


def share_wasted(every_s: float, cost_s: float, between_failures_s: float) -> float:
    """Share of time without progress at a checkpoint interval, at most 1."""
    return min(1.0, cost_s / (every_s + cost_s) + every_s / 2 / between_failures_s)


def _paid(micros_per_day: int, hours: float) -> int:
    return round(micros_per_day * hours / HOURS_PER_DAY)
