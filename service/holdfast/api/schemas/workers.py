"""Schemas of worker registration, rendezvous and reports."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from holdfast_worker.protocol.reports import JobStop
from pydantic import Field

from holdfast.api.schemas.base import Schema, WorkerSchema

MAX_SEQ: Final = 2**31 - 1
"""Largest number of an attempt or of an event of one job that the database can hold."""
MAX_COUNT: Final = 2**63 - 1
"""Largest number of a report or of an event of all jobs."""

INCARNATION: Final = r"^[0-9A-Za-z_-]{1,64}$"
MAX_NODES: Final = 1000
"""Nodes of a job. A lower value rejects the largest jobs; a higher value lets a mistaken number through."""
MAX_ADDRESSES: Final = 16
"""Addresses of a node. A lower value may leave out the one that others reach; a higher value has them try more in vain."""

NodeAddress = Annotated[str, Field(max_length=255, pattern=r"^[0-9A-Za-z._:-]+$")]
"""An IP address or a host name."""


class ReportIn(WorkerSchema):
    """A report of a worker."""

    n: int = Field(ge=1, le=MAX_COUNT)
    at: str
    kind: str
    body: dict[str, Any]


class ReportsIn(WorkerSchema):
    """Reports of one attempt, in order."""

    attempt: int = Field(ge=1, le=MAX_SEQ)
    reports: list[ReportIn] = Field(max_length=1000)
    incarnation: str | None = Field(
        default=None,
        pattern=INCARNATION,
        description="The incarnation that sends them, if it had to register; null if the launcher numbers its placements.",
    )
    oldest: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="Number of the first report, if the worker no longer has the expected one: "
        "the service continues there. Null while the worker has it.",
    )
    asks_end: bool = Field(
        default=False, description="Whether the worker wants to know the expected end of the job."
    )


class GroupDrillOut(Schema):
    """Nodes of one group that end as if their machines had gone."""

    requested_at: datetime = Field(
        description="Time of the request; the worker carries out each request once."
    )
    nodes: list[int] = Field(description="Numbers of the nodes.")
    within_s: float = Field(description="Seconds that are left of the notice; 0: at once.")


class RemainingOut(Schema):
    """Time until the expected end of a job, with interruptions."""

    p10_s: float = Field(description="Seconds until the 10th percentile.")
    p50_s: float = Field(description="Seconds until the median.")
    p90_s: float = Field(description="Seconds until the 90th percentile.")


class ReportsOut(Schema):
    """Reply to reports: where to continue."""

    next: int = Field(description="Number of the next expected report.")
    leave_within_s: float | None = Field(
        description="Seconds in which the worker must save and exit, as on a notice; null if it may continue."
    )
    stop: JobStop | None = Field(
        default=None, description="What becomes of the job, while it stops; null otherwise."
    )
    drills: list[GroupDrillOut] = Field(
        default=[], description="Node groups that users have asked to preempt."
    )
    remaining: RemainingOut | None = Field(
        default=None, description="Null unless the worker asks for it, and without an estimate."
    )


class RegistrationIn(WorkerSchema):
    """Registration of a worker that does not know its attempt."""

    incarnation: str = Field(
        pattern=INCARNATION, description="Its incarnation: a random name, one for each placement."
    )


class RegistrationOut(Schema):
    """The attempt of a worker."""

    attempt: int
    next: int = Field(description="Number of its next report.")
    before: int = Field(
        description="Number of reports of the attempt that others sent before its first."
    )


class RendezvousIn(WorkerSchema):
    """A node of a group that looks for the other nodes of its job."""

    node: int = Field(ge=0, lt=MAX_NODES, description="Its number among all nodes.")
    group: str = Field(min_length=1, max_length=64, description="Name of its group.")
    incarnation: str = Field(
        pattern=INCARNATION,
        description="Its incarnation: a random name, one for each program that runs on it.",
    )
    joined: int = Field(
        default=0,
        ge=0,
        le=MAX_SEQ,
        description="Number of leaders that this incarnation has joined before.",
    )
    addresses: list[NodeAddress] = Field(
        default=[],
        max_length=MAX_ADDRESSES,
        description="Addresses of node 0, the likeliest first; others need none.",
    )
    port: int = Field(default=0, ge=0, lt=2**16, description="Rendezvous port of node 0.")


class LeaderOut(Schema):
    """Node 0, which all others meet."""

    group: str
    incarnation: str
    addresses: list[str]
    port: int


class RendezvousOut(Schema):
    """Where a node meets the others."""

    leader: LeaderOut | None = Field(
        description="The last one to register; null while no node 0 of this launch has registered."
    )
    start: int = Field(
        description="How often this node was sent to this leader before, which accepts only the newest start."
    )
