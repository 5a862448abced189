"""What a launcher saw when it was asked about one launch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from holdfast.domain.events import Cause, Outcome
from holdfast.domain.events.values import NodeGroup


class LaunchStatus(StrEnum):
    """Where one launch is, by the launcher's own word."""

    ABSENT = "absent"
    """The launcher has never heard of this key: nothing was started under it."""
    WAITING = "waiting"
    """Known, without nodes: not placed yet, or being placed again after a loss."""
    UP = "up"
    """All nodes stand."""
    FORGOTTEN = "forgotten"
    """It was known once, and the launcher will not bring it back; nothing of it runs but what it may have left."""
    UNKNOWN = "unknown"
    """It was known once, and the launcher has lost its records of it: what it ran on may run on unseen."""
    ENDED = "ended"
    """Over: the program has ended, or the launch was cancelled (also before it began)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One set of nodes that stood together."""

    ready_at: datetime
    zone: str
    nodes: int
    micros_per_hour: int
    """Price of all nodes together, in micro-dollars an hour."""
    on_demand_micros_per_hour: int
    simulated: bool
    price_source: str = ""
    """Who told the price; empty where the launcher sets it itself."""
    price_as_of: datetime | None = None
    """When that source had it so; None where it is empty."""
    is_price_estimate: bool = False
    """Whether nobody told it, so that it is taken to be high."""
    cloud: str = ""
    """Whose nodes they are, in SkyPilot's spelling; empty where nobody rents them, or the launcher does not know."""
    instance_type: str = ""
    """What a node is called there; empty where the launcher does not know."""
    is_spot: bool | None = None
    """Whether the market may take them; None where the launcher does not know."""
    groups: tuple[NodeGroup, ...] = ()
    """What it is made of, where its nodes differ; empty: they are all alike."""
    lost_at: datetime | None = None
    """None while the nodes stand."""
    cause: Cause | None = None
    """Why they were lost, as far as the launcher can tell; None while they stand."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Denial:
    """A zone that had no room."""

    at: datetime
    zone: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """How a launch ended."""

    at: datetime
    outcome: Outcome
    exit_code: int | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One look at one launch. What is missing between two looks is in it, or is counted in it."""

    standing: LaunchStatus
    since: datetime
    """When the standing began, or the time of the look where the launcher does not know."""
    placements: int = 0
    """How many placements this launch has had; never decreases."""
    trail: tuple[Placement, ...] = ()
    """The newest of them, oldest first; shorter than `placements` where the launcher forgets, never empty if there was one."""
    denials: tuple[Denial, ...] = ()
    """All denials of this launch, oldest first."""
    ending: LaunchResult | None = None
    """Set exactly when the standing is ENDED."""
    leftovers: tuple[str, ...] = ()
    """What may still run and be billed although the launch is over, each in the words of its `Stray`."""
