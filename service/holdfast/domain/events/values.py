"""Values within events, with the bounds that worker reports must respect. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from holdfast_worker.protocol import policies
from holdfast_worker.protocol.store_usage import StoreUsage
from pydantic import BeforeValidator, Field

Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
"""A nonnegative count that fits into a 64-bit column."""
Attempt: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
"""Number of an attempt within its job, from 1."""
MachineNumber: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
"""Number of a node in a placement, or of a GPU in its node, from 0."""
MAX_REPLACED_RANKS: Final = 4096
"""Ranks that one event names. A lower value refuses reports of large runs; a higher value
makes events longer."""
Ranks: TypeAlias = Annotated[tuple[Count, ...], Field(max_length=MAX_REPLACED_RANKS)]
"""Numbers of ranks within a run, from 0."""
MAX_HOSTED_NODES: Final = 1000
"""Nodes that one event names, as in the largest job. A lower value refuses reports of large runs."""
Nodes: TypeAlias = Annotated[tuple[Count, ...], Field(max_length=MAX_HOSTED_NODES)]
"""Indexes of nodes in a placement, from 0."""
Seconds: TypeAlias = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
"""A time span that fits into a column of milliseconds; negative if its end had already passed."""
MAX_PRIORITY: Final = 100
"""Highest priority, and the lowest with a minus sign. A higher value has no further use."""
Priority: TypeAlias = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
"""Priority of a job in the queue; higher ones are admitted first."""


Values: TypeAlias = Mapping[str, float | None]
"""Values by name; None for values that are not finite."""
Versions: TypeAlias = Mapping[str, str]
"""Versions and digests by component."""


StorePlace: TypeAlias = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9/_.-]*$")]
"""Where a store is: a cloud, and its region if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCounts(StoreUsage):
    """Cumulative requests to a store and the bytes that they moved."""

    puts: Count = 0
    gets: Count = 0
    lists: Count = 0
    deletes: Count = 0
    uploaded_bytes: Count = 0
    downloaded_bytes: Count = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PassedOver:
    """A checkpoint that could not be used."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True)
class Interval(policies.Interval):
    """Checkpoint interval chosen by `auto`, and its inputs."""

    interval_s: Count
    stall_ms: Count
    durable_ms: Count
    between_failures_s: Count
    losses: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """Git state of the job's folder at submission, because nodes often have no `.git`."""

    commit: str
    is_dirty: bool
    """Whether tracked files differed from the commit."""
    folder: str = ""
    """Path of the folder within the repository."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What a job holds at most while it runs, as quotas count it."""

    nodes: Count
    gpus: Count
    """Accelerators of all nodes, with the most of its alternatives."""
    micros_per_hour: Count = 0
    """Price of all nodes at the submission; 0 if they are not rented."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """Identical nodes of one placement: same zone and pricing."""

    nodes: int
    zone: str
    """Zone of the nodes; empty while they are absent."""
    is_spot: bool
    micros_per_hour: int
    """Price of all nodes of the group together."""
    on_demand_micros_per_hour: int
    """On-demand price of the same nodes."""
    name: str = ""
    """Name of the group in the job file; empty if the file has none."""
    cloud: str = ""
    """Cloud in SkyPilot's spelling; empty if that of the placement applies."""
    instance_type: str = ""
    """Instance type of a node; empty if that of the placement applies."""


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The last logged value of a metric."""

    value: Annotated[float | None, BeforeValidator(_finite)]
    """The value; None if it was not finite."""
    step: Count
    """Step at which it was logged; may be older than the checkpoint that contains it."""
