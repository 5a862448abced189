"""Which accelerators fit a model of some size, and whether spot nodes fit a job. Pure.

What a loss costs, and how often to save, before anything runs. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.errors import BadRequest

_UNITS: Final = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
HOURS_LEFT: Final = 6.0
"""With less time than this to a deadline, waiting for spot nodes may take all of it. More refuses jobs that would be done in time."""


@dataclass(frozen=True, slots=True)
class Size:
    """Models up to a size, and what fits them."""

    below: int | None
    """Parameters; None: there is no end."""
    accelerators: Sequence[str]
    how: str
    """How the model is laid over them."""


SIZES: Final = (
    Size(10**9, ("T4", "L4"), "the whole model on each (DDP)"),
    Size(10 * 10**9, ("A100",), "the whole model on each while weights, gradients and optimizer fit, else split (FSDP)"),
    Size(70 * 10**9, ("A100-80GB",), "split over several (FSDP)"),
    Size(None, ("H100", "A100-80GB"), "split in tensors, layers and data (3D parallelism)"),
)  # fmt: skip
PEAK_TFLOPS: Final[Mapping[str, int]] = {"T4": 65, "L4": 121, "A100": 312, "A100-80GB": 312, "H100": 989}  # fmt: skip
"""Of half precision without sparsity, as their makers tell. No training reaches it; the ratios are near."""


def parameters(text: str) -> int:
    """How many parameters `7B`, `350M` or `1.5b` are.

    Raises:
        BadRequest: it is no such number.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise BadRequest(f"params: {text!r} is no size of a model; write one such as 350M or 7B")
    return round(float(found[1]) * _UNITS.get(found[2].upper(), 1))


def size_for(count: int) -> Size:
    """What fits a model with so many parameters."""
    return next(size for size in SIZES if size.below is None or count < size.below)


def memory_bytes(count: int) -> int:
    """What training holds of such a model: half-precision weights and gradients, and Adam's three copies of 4 bytes."""
    return 16 * count


def why_on_demand(
    *, hours_left: float | None, has_checkpoints: bool, is_critical: bool
) -> Iterator[str]:
    """Reasons against spot nodes; none where they fit."""
    if hours_left is not None and hours_left < HOURS_LEFT:
        yield f"{hours_left:g} hours are left to the deadline, and spot nodes may not be had for that long"
    if not has_checkpoints:
        yield "without checkpoints each loss begins at step 0 again"
    if is_critical:
        yield "nobody can say when a job on spot nodes will be done"


HOURS_PER_DAY: Final = 24
USUAL_S: Final[Mapping[str, tuple[int, int]]] = {
    "research": (2 * 3600, 4 * 3600),
    "production": (30 * 60, 60 * 60),
    "spot": (15 * 60, 30 * 60),
}
"""How often people save by habit: from, and to."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a failure takes, without checkpoints and with."""

    hours_without: float
    micros_without: int
    hours_with: float
    """At most: what was made since the newest checkpoint."""
    micros_with: int


def loss(micros_per_day: int, at_hour: float, every_hours: float | None) -> Loss:
    """What a failure after so many hours takes from a job that saves so often; None: never."""
    kept = at_hour if every_hours is None else min(at_hour, every_hours)
    return Loss(
        hours_without=at_hour,
        micros_without=_paid(micros_per_day, at_hour),
        hours_with=kept,
        micros_with=_paid(micros_per_day, kept),
    )


def rough(micros: int) -> int:
    """The same as people say it: rounded down to a half of its leading power of ten."""
    unit: int = max(1, 10 ** (len(str(micros)) - 1) // 2)
    return micros // unit * unit


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often to save."""

    best_s: float
    """Young's optimum."""
    waste: float
    """The share of all time that is no progress then: what saving stops, and what losses take."""


def cadence(cost_s: float, between_failures_s: float) -> Cadence:
    """How often to save where a checkpoint stops training for so long, and nodes last so long on average.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974). Workers choose by the exact waste, which
    differs where a checkpoint costs much of what nodes last.
    """
    best_s = math.sqrt(2 * cost_s * between_failures_s)
    return Cadence(best_s, share_wasted(best_s, cost_s, between_failures_s))


def share_wasted(every_s: float, cost_s: float, between_failures_s: float) -> float:
    """The share of all time that is no progress with a checkpoint so often, at most all of it."""
    return min(1.0, cost_s / (every_s + cost_s) + every_s / 2 / between_failures_s)


def _paid(micros_per_day: int, hours: float) -> int:
    return round(micros_per_day * hours / HOURS_PER_DAY)
