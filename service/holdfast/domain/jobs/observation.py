"""An observation: the state of one launch as its launcher reported it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from holdfast.domain.events import Cause, Outcome
from holdfast.domain.events.values import NodeGroup


class LaunchStatus(StrEnum):
    """Status of a launch as its launcher reports it."""

    ABSENT = "absent"
    """Unknown to the launcher: no launch was started under this key."""
    WAITING = "waiting"
    """Known but without nodes: not placed yet, or being placed again after a loss."""
    UP = "up"
    """The nodes of the newest placement are running, except for absent and lost ones."""
    FORGOTTEN = "forgotten"
    """No longer known to the launcher. Only orphans of it may still run."""
    UNKNOWN = "unknown"
    """Once known, but the launcher lost its records: nodes may still run unseen."""
    ENDED = "ended"
    """The program has ended or the launch was cancelled, possibly before it began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeChange:
    """A node of a placement was lost, replaced or began to run while other nodes kept running."""

    at: datetime
    node: int
    """Index of the node in its placement, from 0."""
    group: int = 0
    """The node group whose nodes and price change; identical nodes are group 0."""
    with_node: int | None = None
    """The node with whose loss the launcher released this one; None if it was lost itself."""
    nodes: int
    """Number of nodes of the group that run from then on."""
    micros_per_hour: int
    """Price of these nodes together, in micro-dollars an hour."""
    on_demand_micros_per_hour: int
    cause: Cause | None = None
    """Cause of a loss as far as the launcher knows; None if the node was replaced."""
    detail: str = ""
    placed: NodeGroup | None = None
    """Where all nodes of the group stand now, and their price; None if where they stood before."""
    price_source: str = ""
    """Source of the price; empty if the launcher sets it."""
    is_price_estimate: bool = False
    """Whether the price is an estimate, deliberately high, for lack of a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One set of nodes that ran together."""

    ready_at: datetime
    zone: str
    nodes: int
    micros_per_hour: int
    """Price of all nodes together, in micro-dollars an hour."""
    on_demand_micros_per_hour: int
    simulated: bool
    price_source: str = ""
    """Source of the price; empty if the launcher sets it."""
    price_as_of: datetime | None = None
    """Date of the price at its source; None without a source."""
    is_price_estimate: bool = False
    """Whether the price is an estimate, deliberately high, for lack of a source."""
    cloud: str = ""
    """Cloud in SkyPilot's spelling; empty if not rented or unknown."""
    instance_type: str = ""
    """Instance type of a node; empty if unknown."""
    is_spot: bool | None = None
    """Whether the nodes are spot instances; None if unknown."""
    groups: tuple[NodeGroup, ...] = ()
    """Node groups if the nodes differ; empty if all are alike."""
    absent_nodes: tuple[int, ...] = ()
    """Nodes that did not run at its start, of groups with price 0."""
    lost_at: datetime | None = None
    """Time of the loss; None while the nodes run."""
    cause: Cause | None = None
    """Cause of the loss as far as the launcher knows; None while the nodes run."""
    detail: str = ""
    node_changes: tuple[NodeChange, ...] = ()
    """All losses and replacements of single nodes, oldest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Denial:
    """A zone without capacity."""

    at: datetime
    zone: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """The end of a launch."""

    at: datetime
    outcome: Outcome
    exit_code: int | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One observation of one launch.

    Events between two observations are listed or counted in it.
    """

    status: LaunchStatus
    since: datetime
    """Start of this status, or the time of the observation if unknown."""
    placements: int = 0
    """Number of placements of this launch so far; never decreases."""
    recent_placements: tuple[Placement, ...] = ()
    """The newest placements, oldest first; at least one if there were any, possibly fewer than `placements`."""
    denials: tuple[Denial, ...] = ()
    """All denials of this launch, oldest first."""
    result: LaunchResult | None = None
    """Set if and only if the status is ENDED."""
    is_partial: bool = False
    """Whether parts of the launch were not requested yet, so that it has to be submitted again."""
    leftovers: tuple[str, ...] = ()
    """Orphans that may still run and be billed after the launch, each described by its `Orphan`."""
