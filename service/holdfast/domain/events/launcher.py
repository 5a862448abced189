"""What was seen at a launcher."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

from pydantic import AwareDatetime

from holdfast.domain.events.base import EventBase, Source
from holdfast.domain.events.values import Attempt, Count, NodeGroup


class Cause(StrEnum):
    """Why the nodes of a placement were lost. Only the first two enter the time between failures."""

    PREEMPTED = "preempted"
    """Taken by the market, and a notice proves it."""
    NODE_FAILED = "node_failed"
    """Gone without a word: a reclaim without notice and a machine that broke look the same."""
    LAUNCHER_RESTARTED = "launcher_restarted"
    LAUNCHER_FORGOT = "launcher_forgot"
    USER_ERROR = "user_error"
    PAUSED = "paused"
    """Given back, as the job is to wait until somebody takes it up again."""


TAKEN: Final = frozenset({Cause.PREEMPTED, Cause.NODE_FAILED})
"""What the market or its machines did; nothing else says how long nodes last. Without a notice nobody can tell the two apart."""


class Outcome(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityDenied(EventBase):
    """A zone had no room. The launcher goes on trying; a denial is data and is never deleted."""

    source: ClassVar[Source] = Source.LAUNCHER
    zone: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesReady(EventBase):
    """All nodes stand and are paid for from now on. Begins attempt number `attempt`."""

    source: ClassVar[Source] = Source.LAUNCHER
    attempt: int
    zone: str
    nodes: int
    micros_per_hour: int
    """Price of all nodes together, in micro-dollars an hour."""
    on_demand_micros_per_hour: int
    """What the same nodes would cost without spot."""
    simulated: bool
    """True where the price is not money that anybody pays (local processes, simulated cloud)."""
    price_source: str = ""
    """Who told the price, for people; empty where the launcher sets it itself, and in events of before."""
    price_as_of: AwareDatetime | None = None
    """When that source had it so; None where `price_source` is empty."""
    is_price_estimate: bool = False
    """Whether nobody told the price, so that it is taken to be high."""
    cloud: str = ""
    """Whose nodes they are, in SkyPilot's spelling; empty where nobody said, and where nobody rents them."""
    instance_type: str = ""
    """What a node is called there; empty where nobody said, and in events of before."""
    is_spot: bool | None = None
    """Whether the market may take them; None where nobody said."""
    groups: tuple[NodeGroup, ...] = ()
    """What the placement is made of, where its nodes differ; their sums are above. Empty: they are all alike."""

    @property
    def parts(self) -> tuple[NodeGroup, ...]:
        """The groups; nodes that are all alike are one."""
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
    """From `at` on, nodes of an attempt cost something else. It may be told long after; it changes no state."""

    source: ClassVar[Source] = Source.RECONCILER
    attempt: Attempt
    group: Count = 0
    """Which of the placement's `groups`, from 0; nodes that are all alike are group 0."""
    micros_per_hour: int
    """Price of all nodes of the group together, in micro-dollars an hour."""
    on_demand_micros_per_hour: int
    """What the same nodes would cost without spot from then on."""
    price_source: str = ""
    """Who told it, for people."""
    price_as_of: AwareDatetime | None = None
    """When that source had it so; None where it does not say."""
    is_price_estimate: bool = False
    """Whether nobody told it, so that it is taken to be high."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityLost(EventBase):
    """The nodes of an attempt are gone, or were given up."""

    source: ClassVar[Source] = Source.LAUNCHER
    attempt: Attempt
    """0 when a launch was lost before it had nodes."""
    cause: Cause
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(EventBase):
    """The job is over and nothing of it runs any more."""

    source: ClassVar[Source] = Source.LAUNCHER
    outcome: Outcome
    exit_code: int | None = None
    """Exit code of the program; None where no program had run or none was told."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paused(EventBase):
    """Nothing of the job runs any more, and nothing is launched before somebody asks for it."""

    source: ClassVar[Source] = Source.LAUNCHER
    detail: str
    """Why, and how to take it up again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanupFailed(EventBase):
    """Something of the job may still run, and be paid for, though it should be gone. Changes no state."""

    source: ClassVar[Source] = Source.LAUNCHER
    detail: str
    """What and where, for whoever has to remove it; one thing is always told in the same words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanedUp(EventBase):
    """What was left behind is gone."""

    source: ClassVar[Source] = Source.LAUNCHER
    detail: str
    """What it was, in the words of its `CleanupFailed`."""


LauncherFact: TypeAlias = (
    CapacityDenied | NodesReady | CapacityLost | Paused | Finished | CleanupFailed | CleanedUp
)
