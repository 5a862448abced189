"""What facts carry: values that have no time of their own, within the bounds of what a worker may say. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from holdfast_worker.protocol import policies
from pydantic import BeforeValidator, Field

Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
"""What a worker counted: never less than nothing, never more than a database can hold."""
Attempt: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
"""Number of a placement within its job, from 1."""
Seconds: TypeAlias = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
"""A span of time, which a database can hold in milliseconds; negative where its end had passed already."""


Values: TypeAlias = Mapping[str, float | None]
"""Numbers by name; None where one was not finite."""
Versions: TypeAlias = Mapping[str, str]
"""Versions and digests, by what they are of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PassedOver:
    """A checkpoint that could not be used."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True)
class Interval(policies.Interval):
    """How often `auto` saves, and what that follows from."""

    interval_s: Count
    stall_ms: Count
    durable_ms: Count
    between_failures_s: Count
    losses: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """What the folder of a job is in its repository, as whoever submitted it saw it: nodes often get no `.git`."""

    commit: str
    is_dirty: bool
    """Whether files that git knows were others than in the commit."""
    folder: str = ""
    """The folder below the top of the repository."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """Nodes of one placement that are alike: in one zone, sold in one way."""

    nodes: int
    zone: str
    is_spot: bool
    micros_per_hour: int
    """Price of all nodes of the group together."""
    on_demand_micros_per_hour: int
    """What the same nodes would cost without spot."""


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The last value of a number that the script logs."""

    value: Annotated[float | None, BeforeValidator(_finite)]
    """None where it was not finite."""
    step: Count
    """After how many steps it was logged; it may be older than the checkpoint that it stands with."""
