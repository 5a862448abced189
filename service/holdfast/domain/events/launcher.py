"""Events observed at a launcher."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

from pydantic import AwareDatetime

from holdfast.domain.events.base import EventBase, Source
from holdfast.domain.events.values import Attempt, Count, NodeGroup, Nodes


class Cause(StrEnum):
    """Cause of a capacity loss. Only the first two count for the time between failures."""

    PREEMPTED = "preempted"
    """Preempted, as a termination notice proves."""
    NODE_FAILED = "node_failed"
    """Lost without notice: a preemption without notice and a node failure look the same."""
    LAUNCHER_RESTARTED = "launcher_restarted"
    LAUNCHER_FORGOT = "launcher_forgot"
    USER_ERROR = "user_error"
    PAUSED = "paused"
    """Released because the job pauses."""
    MOVED = "moved"
    """Released because the plan of the job needs other nodes."""
    ENDED = "ended"
    """Released because the program on them has ended while nodes of other groups run, or has completed without them."""


PREEMPTION_CAUSES: Final = frozenset({Cause.PREEMPTED, Cause.NODE_FAILED})
"""Causes that reflect the spot market or its machines. Without a notice the two are indistinguishable."""


DRILL: Final = "drill"
"""Listed instead of the cause of a loss that a user requested. It is no `Cause`: events have the field `drill`
beside the cause, so that older versions, which skip unknown causes, still see the loss."""


class Outcome(StrEnum):
    """Outcome of a job."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityDenied(EventBase):
    """A zone had no capacity. The launcher keeps trying; denials are data and are never deleted."""

    source: ClassVar[Source] = Source.LAUNCHER
    zone: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesReady(EventBase):
    """The nodes are running and billed from now on. Begins attempt number `attempt`.

    All nodes, except for those of node groups that are still absent.
    """

    source: ClassVar[Source] = Source.LAUNCHER
    attempt: int
    zone: str
    nodes: int
    micros_per_hour: int
    """Price of all nodes together, in micro-dollars per hour."""
    on_demand_micros_per_hour: int
    """On-demand price of the same nodes."""
    simulated: bool
    """Whether the price is simulated (local processes, simulated cloud)."""
    price_source: str = ""
    """Source of the price for display; empty if the launcher sets it, and in older events."""
    price_as_of: AwareDatetime | None = None
    """Date of the price at its source; None without `price_source`."""
    is_price_estimate: bool = False
    """Whether the price is a high estimate for lack of a source."""
    cloud: str = ""
    """Cloud in SkyPilot's spelling; empty if unknown or not rented."""
    instance_type: str = ""
    """Instance type of a node; empty if unknown, and in older events."""
    is_spot: bool | None = None
    """Whether the nodes are spot instances; None if unknown."""
    groups: tuple[NodeGroup, ...] = ()
    """Node groups if the nodes differ, adding up to the sums above; empty if all are alike."""
    absent_nodes: Nodes = ()
    """Nodes that do not run yet, of groups with price 0. A `NodeReplaced` follows for each."""

    @property
    def has_named_groups(self) -> bool:
        """Whether the groups are those of the job file, each lost and replaced as a whole."""
        return any(part.name for part in self.groups)

    @property
    def running_parts(self) -> tuple[tuple[NodeGroup, int], ...]:
        """The node groups, each with its number of nodes that are not absent."""
        found, first = list[tuple[NodeGroup, int]](), 0
        for part in self.parts:
            absent = sum(first <= node < first + part.nodes for node in self.absent_nodes)
            found.append((part, part.nodes - absent))
            first += part.nodes
        return tuple(found)

    @property
    def parts(self) -> tuple[NodeGroup, ...]:
        """The node groups; identical nodes form one group."""
        return self.groups or (
            NodeGroup(
                nodes=self.nodes,
                zone=self.zone,
                is_spot=bool(self.is_spot),
                micros_per_hour=self.micros_per_hour,
                on_demand_micros_per_hour=self.on_demand_micros_per_hour,
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceChanged(EventBase):
    """The price of an attempt's nodes changed at `at`.

    It may be recorded much later and changes no state.
    """

    source: ClassVar[Source] = Source.RECONCILER
    attempt: Attempt
    group: Count = 0
    """Index in the placement's `groups`, from 0; identical nodes are group 0."""
    micros_per_hour: int
    """Price of all nodes of the group together, in micro-dollars per hour."""
    on_demand_micros_per_hour: int
    """On-demand price of the same nodes from then on."""
    price_source: str = ""
    """Source of the price for display."""
    price_as_of: AwareDatetime | None = None
    """Date of the price at its source; None if unknown."""
    is_price_estimate: bool = False
    """Whether the price is a high estimate for lack of a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityLost(EventBase):
    """The nodes of an attempt are lost or were released."""

    source: ClassVar[Source] = Source.LAUNCHER
    attempt: Attempt
    """Number of the attempt; 0 if the launch was lost before it had nodes."""
    cause: Cause
    detail: str = ""
    drill: bool = False
    """Whether a user requested the preemption. It says nothing about the spot market."""

    @property
    def is_preemption(self) -> bool:
        """Whether the spot market or its machines caused the loss."""
        return self.cause in PREEMPTION_CAUSES and not self.drill


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLost(EventBase):
    """A node of an attempt is lost; the others keep running until it is replaced.

    A node group that is lost as a whole has one such event for each of its nodes.
    """

    source: ClassVar[Source] = Source.LAUNCHER
    group: Count = 0
    """The group whose nodes and price change, as in `PriceChanged`."""
    attempt: Attempt
    node: int
    """Index of the node in its placement, from 0."""
    with_node: Count | None = None
    """The node with whose loss the launcher released this one: both are one preemption. None if it was lost itself."""
    nodes: int
    """Number of nodes of the group that run from then on."""
    micros_per_hour: int
    """Price of these nodes together, in micro-dollars per hour."""
    on_demand_micros_per_hour: int
    """On-demand price of the same nodes."""
    cause: Cause
    detail: str = ""
    drill: bool = False
    """Whether a user requested the preemption. It says nothing about the spot market."""

    @property
    def is_preemption(self) -> bool:
        """Whether the spot market or its machine caused the loss."""
        return self.cause in PREEMPTION_CAUSES and not self.drill


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeReplaced(EventBase):
    """A lost node of an attempt was replaced, or an absent one is there.

    It is billed from now on.
    """

    source: ClassVar[Source] = Source.LAUNCHER
    group: Count = 0
    """The group whose nodes and price change, as in `PriceChanged`."""
    attempt: Attempt
    node: int
    """Index of the node in its placement, from 0."""
    nodes: int
    """Number of nodes of the group that run from then on."""
    micros_per_hour: int
    """Price of these nodes together, in micro-dollars per hour."""
    on_demand_micros_per_hour: int
    """On-demand price of the same nodes."""
    placed: NodeGroup | None = None
    """Where all nodes of the group stand now, and their price; None if where they stood before."""
    price_source: str = ""
    """Source of the price for display; empty if the launcher sets it."""
    is_price_estimate: bool = False
    """Whether the price is a high estimate for lack of a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(EventBase):
    """The job has ended and nothing of it runs."""

    source: ClassVar[Source] = Source.LAUNCHER
    outcome: Outcome
    exit_code: int | None = None
    """Exit code of the program; None if no program ran or none was reported."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paused(EventBase):
    """Nothing of the job runs, and the job is launched again only on request."""

    source: ClassVar[Source] = Source.LAUNCHER
    detail: str
    """Reason of the pause, and the command that resumes the job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanupFailed(EventBase):
    """An orphan of the job may still run and be billed. Changes no state."""

    source: ClassVar[Source] = Source.LAUNCHER
    detail: str
    """Description of the orphan for its removal; identical for the same orphan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanedUp(EventBase):
    """An orphan is gone."""

    source: ClassVar[Source] = Source.LAUNCHER
    detail: str
    """Description of the orphan, as in its `CleanupFailed`."""


LauncherFact: TypeAlias = (
    CapacityDenied
    | NodesReady
    | CapacityLost
    | NodeLost
    | NodeReplaced
    | Paused
    | Finished
    | CleanupFailed
    | CleanedUp
)
