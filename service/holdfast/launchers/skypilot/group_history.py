"""The history of a launch with node groups, and the placements that follow from it. Pure.

Each group is a managed job, and SkyPilot reports what happens to it in an order of its own. The launcher records
in one order what it has observed of all groups, and never changes it. Placements and their node changes follow from this
record alone, so that they only grow, whatever SkyPilot reports later.

A placement is one life of the first group. It begins when any group stands, or at once when the first group is lost
while others stand. It ends when the first group is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from holdfast.domain.events import Cause
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.domain.jobs.observation import Denial, NodeChange, Observation, Placement

LEADER: Final = 0
"""Index of the first group, whose life is an attempt."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A node group of a job."""

    name: str
    nodes: int


class GroupEventKind(StrEnum):
    """What happened to a group."""

    UP = "group_up"
    LOST = "group_lost"
    ENDED = "group_ended"
    """Its managed job ended while its nodes stood."""
    DENIED = "group_denied"
    REFUSED = "group_refused"
    """SkyPilot refused its launch request."""
    ABANDONED = "launch_abandoned"
    """The launch cannot succeed any more, and ends so that another one begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupEvent:
    """One entry of the record of a launch."""

    at: datetime
    kind: GroupEventKind
    group: int
    number: int
    """Number of the group's stay, or of its denial, from 1."""
    placed: NodeGroup | None = None
    """Where it stands and its price; None unless it is up."""
    price_source: str = ""
    price_as_of: datetime | None = None
    is_price_estimate: bool = False
    cause: Cause | None = None
    """Cause of a loss; None otherwise."""
    zone: str = ""
    """Zone that had no capacity; empty otherwise."""
    detail: str = ""

    @property
    def identity(self) -> tuple[str, int, int]:
        """What is recorded once."""
        return self.kind, self.group, self.number

    def encode(self) -> EngineEvent:
        """Return the row that stores it."""
        placed = self.placed and {name: getattr(self.placed, name) for name in NodeGroup.__slots__}
        body = {
            "placed": placed,
            "price_source": self.price_source,
            "price_as_of": self.price_as_of and self.price_as_of.isoformat(),
            "is_price_estimate": self.is_price_estimate,
            "cause": self.cause,
            "zone": self.zone,
            "detail": self.detail,
        }
        given = json.dumps({word: value for word, value in body.items() if value})
        code = f"{self.group}/{self.number}"
        return EngineEvent(at=self.at, status=self.kind.value, code=code, reason=given)

    @classmethod
    def decode(cls, row: EngineEvent) -> GroupEvent:
        """Return the entry of a stored row."""
        group, _, number = (row.code or "").partition("/")
        body: dict[str, Any] = json.loads(row.reason)
        as_of, placed = body.pop("price_as_of", None), body.pop("placed", None)
        cause = body.pop("cause", None)
        return cls(
            at=row.at,
            kind=GroupEventKind(row.status),
            group=int(group),
            number=int(number),
            placed=NodeGroup(**placed) if placed else None,
            price_as_of=datetime.fromisoformat(as_of) if as_of else None,
            cause=Cause(cause) if cause else None,
            **body,
        )


def group_events(shape: GroupShape, group: int, seen: Observation) -> list[GroupEvent]:
    """Return all that an observation of one group reports, oldest first."""
    found = list[GroupEvent]()
    for number, item in enumerate(seen.recent_placements, 1):
        found.append(_up(shape, item, group=group, number=number))
        if item.lost_at is not None:
            found.append(
                GroupEvent(
                    at=max(item.lost_at, item.ready_at),
                    kind=GroupEventKind.LOST,
                    group=group,
                    number=number,
                    cause=item.cause or Cause.NODE_FAILED,
                    detail=item.detail,
                )
            )
        elif seen.result is not None and number == seen.placements:
            at = max(seen.result.at, item.ready_at)
            found.append(GroupEvent(at=at, kind=GroupEventKind.ENDED, group=group, number=number))
    found += [
        GroupEvent(
            at=denial.at,
            kind=GroupEventKind.DENIED,
            group=group,
            number=number,
            zone=denial.zone,
            detail=denial.detail,
        )
        for number, denial in enumerate(seen.denials, 1)
    ]
    return found


def _up(shape: GroupShape, item: Placement, *, group: int, number: int) -> GroupEvent:
    placed = NodeGroup(
        name=shape.name,
        nodes=shape.nodes,
        zone=item.zone,
        is_spot=bool(item.is_spot),
        micros_per_hour=item.micros_per_hour,
        on_demand_micros_per_hour=item.on_demand_micros_per_hour,
        cloud=item.cloud,
        instance_type=item.instance_type,
    )
    return GroupEvent(
        at=item.ready_at,
        kind=GroupEventKind.UP,
        group=group,
        number=number,
        placed=placed,
        price_source=item.price_source,
        price_as_of=item.price_as_of,
        is_price_estimate=item.is_price_estimate,
    )


def new_events(
    known: Sequence[GroupEvent], reported: Iterable[GroupEvent], until: datetime | None
) -> list[GroupEvent]:
    """Return the reported events that are not recorded yet, in order of time.

    Those after `until` wait, as something before them may not be reported yet; None: nothing waits.
    """
    recorded = {event.identity for event in known}
    fresh = [
        event
        for event in reported
        if event.identity not in recorded and (until is None or event.at <= until)
    ]
    # A loss precedes a stay that begins at the same time.
    return sorted(fresh, key=lambda each: (each.at, each.kind is GroupEventKind.UP, each.group))


@dataclass(slots=True)
class LaunchHistory:
    """What follows from the record of a launch."""

    groups: Sequence[GroupShape]
    placements: list[Placement] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)
    refusals: dict[int, str] = field(default_factory=dict)
    """Refusals of SkyPilot by group."""
    is_abandoned: bool = False
    leader_lost_at: datetime | None = None
    """Time of the newest loss of the first group; None before one."""
    placement_of: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of the placement in which a stay of a group began, by group and number of the stay."""
    standing: dict[int, GroupEvent] = field(default_factory=dict)
    """The groups that stand, each since its event."""
    _seen: set[tuple[str, int, int]] = field(default_factory=set)

    @classmethod
    def of(cls, groups: Sequence[GroupShape], events: Iterable[GroupEvent]) -> LaunchHistory:
        """Return the history after these events."""
        history = cls(groups)
        for event in events:
            history.apply(event)
        return history

    @property
    def is_up(self) -> bool:
        """Whether the newest placement has not ended."""
        return bool(self.placements) and self.placements[-1].lost_at is None

    def apply(self, event: GroupEvent) -> None:
        """Apply one event; only the first of two with the same identity, which replicas may record."""
        if event.identity in self._seen:
            return
        self._seen.add(event.identity)
        match event.kind:
            case GroupEventKind.UP:
                self._begin_stay(event)
            case GroupEventKind.LOST | GroupEventKind.ENDED:
                self._end_stay(event)
            case GroupEventKind.DENIED:
                self.denials.append(Denial(at=event.at, zone=event.zone, detail=event.detail))
            case GroupEventKind.REFUSED:
                self.refusals[event.group] = event.detail
            case GroupEventKind.ABANDONED:
                self.is_abandoned = True

    def _begin_stay(self, event: GroupEvent) -> None:
        self.standing[event.group] = event
        if self.is_up:
            self._add_changes(_arrivals(self._first_node(event.group), event, self._now(event.at)))
        else:
            self._begin_placement(event.at)
        self.placement_of[event.group, event.number] = len(self.placements)

    def _end_stay(self, event: GroupEvent) -> None:
        stood = self.standing.get(event.group)
        if stood is None or stood.number != event.number:
            return
        del self.standing[event.group]
        assert self.is_up, "a group stands in a placement"
        at = self._now(event.at)
        if event.kind is GroupEventKind.LOST and event.group == LEADER:
            self.leader_lost_at = at
            gone = replace(self.placements[-1], lost_at=at, cause=event.cause, detail=event.detail)
            self.placements[-1] = gone
            if self.standing:
                self._begin_placement(at)
            return
        self._add_changes(_departures(self._first_node(event.group), stood, event, at))

    def _now(self, at: datetime) -> datetime:
        """A time of an event of the newest placement, not before its begin."""
        return max(at, self.placements[-1].ready_at)

    def _begin_placement(self, at: datetime) -> None:
        before = self.placements[-1].lost_at if self.placements else None
        stand = [self.standing[number] for number in sorted(self.standing)]
        groups, absent = list[NodeGroup](), list[int]()
        for number, shape in enumerate(self.groups):
            event = self.standing.get(number)
            groups.append(event.placed if event and event.placed else _absent(shape))
            if event is None:
                first = self._first_node(number)
                absent += range(first, first + shape.nodes)
        dates = [event.price_as_of for event in stand if event.price_as_of]
        kinds = {group.is_spot for group in groups if group.zone}
        first_zone = next((group.zone for group in groups if group.zone), "unknown")
        self.placements.append(
            Placement(
                ready_at=max(at, before) if before else at,
                zone=first_zone,
                nodes=sum(shape.nodes for shape in self.groups),
                micros_per_hour=sum(group.micros_per_hour for group in groups),
                on_demand_micros_per_hour=sum(g.on_demand_micros_per_hour for g in groups),
                simulated=False,
                price_source="; ".join(
                    dict.fromkeys(event.price_source for event in stand if event.price_source)
                ),
                price_as_of=min(dates, default=None),
                is_price_estimate=any(event.is_price_estimate for event in stand),
                is_spot=kinds.pop() if len(kinds) == 1 else None,
                groups=tuple(groups),
                absent_nodes=tuple(absent),
            )
        )

    def _add_changes(self, changes: Iterable[NodeChange]) -> None:
        newest = self.placements[-1]
        self.placements[-1] = replace(newest, node_changes=(*newest.node_changes, *changes))

    def _first_node(self, group: int) -> int:
        return sum(shape.nodes for shape in self.groups[:group])


def _absent(shape: GroupShape) -> NodeGroup:
    return NodeGroup(
        name=shape.name,
        nodes=shape.nodes,
        zone="",
        is_spot=False,
        micros_per_hour=0,
        on_demand_micros_per_hour=0,
    )


def _arrivals(first: int, event: GroupEvent, at: datetime) -> Iterable[NodeChange]:
    """The nodes of a group that stand from then on."""
    placed = event.placed
    assert placed, "a group stands somewhere"
    for count in range(1, placed.nodes + 1):
        yield NodeChange(
            at=at,
            node=first + count - 1,
            group=event.group,
            nodes=count,
            micros_per_hour=placed.micros_per_hour * count // placed.nodes,
            on_demand_micros_per_hour=placed.on_demand_micros_per_hour * count // placed.nodes,
            placed=placed,
            price_source=event.price_source,
            is_price_estimate=event.is_price_estimate,
        )


def _departures(
    first: int, stood: GroupEvent, event: GroupEvent, at: datetime
) -> Iterable[NodeChange]:
    """The nodes of a group that are gone from then on, all together."""
    placed = stood.placed
    assert placed, "a group stood somewhere"
    for gone in range(1, placed.nodes + 1):
        left = placed.nodes - gone
        yield NodeChange(
            at=at,
            node=first + gone - 1,
            group=event.group,
            with_node=first if gone > 1 else None,
            nodes=left,
            micros_per_hour=placed.micros_per_hour * left // placed.nodes,
            on_demand_micros_per_hour=placed.on_demand_micros_per_hour * left // placed.nodes,
            cause=event.cause or Cause.ENDED,
            detail=event.detail,
        )
