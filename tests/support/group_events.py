"""A job of three node groups in two regions: one was preempted twice, then the first one was lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.domain.events import Cause, Event, NodeLost, NodeReplaced, NodesReady, PriceChanged
from holdfast.domain.events.values import NodeGroup
from support.events import SPOT, at, launched, lost, restoring, saved, submitted, training

HEAD: Final = NodeGroup(
    name="head",
    nodes=1,
    zone="aws/us-east-1/us-east-1a",
    is_spot=False,
    micros_per_hour=2 * SPOT,
    on_demand_micros_per_hour=2 * SPOT,
    cloud="aws",
    instance_type="p4d.24xlarge",
)
FIRST: Final = replace(
    HEAD, name="first", is_spot=True, micros_per_hour=SPOT, zone="aws/us-east-1/us-east-1b"
)
SECOND: Final = replace(
    FIRST,
    name="second",
    nodes=2,
    zone="aws/us-east-2/us-east-2a",
    micros_per_hour=4 * SPOT,
    on_demand_micros_per_hour=8 * SPOT,
)
GROUPS: Final = (HEAD, FIRST, SECOND)
SECOND_LATER: Final = replace(SECOND, zone="aws/us-east-2/us-east-2c", micros_per_hour=6 * SPOT)
ABSENT: Final = {"zone": "", "is_spot": False, "micros_per_hour": 0, "on_demand_micros_per_hour": 0}


def groups_ready(
    seconds: float, *groups: NodeGroup, attempt: int = 1, absent: tuple[int, ...] = ()
) -> NodesReady:
    """The begin of an attempt with these groups; those with the numbers in `absent` have no nodes."""
    parts = [
        replace(group, **ABSENT) if n in absent else group
        for n, group in enumerate(groups or GROUPS)
    ]
    nodes = sum(part.nodes for part in parts)
    return NodesReady(
        at=at(seconds),
        attempt=attempt,
        zone=next(part.zone for part in parts if part.zone),
        nodes=nodes,
        micros_per_hour=sum(part.micros_per_hour for part in parts),
        on_demand_micros_per_hour=sum(part.on_demand_micros_per_hour for part in parts),
        simulated=False,
        price_source="a test",
        price_as_of=at(0),
        groups=tuple(parts),
        absent_nodes=tuple(
            node for n in absent for node in range(_first(n), _first(n) + parts[n].nodes)
        ),
    )


def group_lost(
    seconds: float, number: int, *, attempt: int = 1, cause: Cause = Cause.NODE_FAILED
) -> list[NodeLost]:
    """The loss of all nodes of a group."""
    group, first = GROUPS[number], _first(number)
    return [
        NodeLost(
            at=at(seconds),
            group=number,
            attempt=attempt,
            node=first + n,
            with_node=first if n else None,
            nodes=group.nodes - n - 1,
            micros_per_hour=group.micros_per_hour * (group.nodes - n - 1) // group.nodes,
            on_demand_micros_per_hour=0,
            cause=cause,
        )
        for n in range(group.nodes)
    ]


def group_replaced(
    seconds: float, number: int, placed: NodeGroup | None = None, *, attempt: int = 1
) -> list[NodeReplaced]:
    """The replacement of all nodes of a group, where `placed` is."""
    group = placed or GROUPS[number]
    return [
        NodeReplaced(
            at=at(seconds),
            group=number,
            attempt=attempt,
            node=_first(number) + n,
            nodes=n + 1,
            micros_per_hour=group.micros_per_hour * (n + 1) // group.nodes,
            on_demand_micros_per_hour=group.on_demand_micros_per_hour * (n + 1) // group.nodes,
            placed=group,
        )
        for n in range(group.nodes)
    ]


def _first(number: int) -> int:
    return sum(group.nodes for group in GROUPS[:number])


def group_events() -> list[Event]:
    """All events but the submission; after 5000 s, all groups have nodes, and the job trains."""
    return [
        launched(1),
        groups_ready(60, absent=(2,)),
        *group_replaced(200, 2),
        training(300),
        saved(900, step=90),
        *group_lost(1000, 2, cause=Cause.PREEMPTED),
        *group_replaced(1400, 2, SECOND_LATER),
        PriceChanged(
            at=at(1600),
            attempt=1,
            group=1,
            micros_per_hour=3 * SPOT,
            on_demand_micros_per_hour=2 * SPOT,
            price_source="a test",
        ),
        *group_lost(2200, 2),
        *group_replaced(2500, 2),
        saved(2900, step=200),
        lost(3000, cause=Cause.NODE_FAILED),
        groups_ready(
            3000, HEAD, replace(FIRST, micros_per_hour=3 * SPOT), SECOND, attempt=2, absent=(0,)
        ),
        *group_replaced(3400, 0, attempt=2),
        restoring(3450, attempt=2),
        training(3500, attempt=2, step=200),
    ]


def group_submission() -> Event:
    """The submission of the job."""
    groups = [
        {"name": part.name, "num_nodes": part.nodes, "resources": {"infra": infra}}
        for part in GROUPS
        for infra in ["/".join(part.zone.split("/")[:2])]
    ]
    return submitted(name="llama", infra="aws", nodes=(None, 4), groups=groups)
