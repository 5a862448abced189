"""What the events of a job show about places, and about how long a start takes. Pure.

A denial shows that a place had no spot nodes, and a placement that it had some, until it is lost or released. A loss to the market shows that
there are none any more; a release, a drill and the end of a job only that there were some until then. On-demand nodes show nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from holdfast.domain.events import (
    CapacityDenied,
    CapacityLost,
    Event,
    Finished,
    NodeLost,
    NodeReplaced,
    NodesReady,
    Resized,
    TrainingStarted,
)
from holdfast.domain.events.planning import CapacityType, LaunchPlacement
from holdfast.domain.events.service import LaunchRequested
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.jobfile.places import PlaceOption, is_within, job_places
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.planning.places import hardware_of, reported_place

OWN: Final = "own"
"""Source of observations by jobs of this service."""
MAX_RUNS: Final = 20_000
"""Runs of one recording. A lower value refuses long recordings of a place that changes often; a higher value lets one file
fill the table of observations."""
OBSERVED_KINDS: Final = (
    LaunchRequested,
    CapacityDenied,
    NodesReady,
    NodeLost,
    NodeReplaced,
    CapacityLost,
    TrainingStarted,
    Finished,
)
"""Events that show something about places."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceObservation:
    """Whether spot nodes were available at a place."""

    place: str
    """The zone, or the region if no zone is known, in lower case: `aws/us-east-1/us-east-1a`."""
    hardware: str
    """As `hardware_of`; empty if unknown."""
    at: datetime
    until: datetime | None
    """End of the time for which this is known; the same as `at` for a moment, None while the nodes stand."""
    is_available: bool
    node_group: int | None = None
    """The node group whose nodes stand, from 0; None for a moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesGone:
    """The nodes of a group no longer stand."""

    node_group: int
    until: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StartStep:
    """A step of a launch on its way to training."""

    launch: int
    at: datetime
    event: type[LaunchRequested | CapacityDenied | NodesReady | TrainingStarted]
    capacity: CapacityType | None = None
    """What the launch asks for, or has got; None if unknown."""


Shown: TypeAlias = PlaceObservation | NodesGone | StartStep


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of a group, or where they stood last."""

    place: str
    hardware: str
    is_spot: bool
    since: datetime
    stand: bool


class PlaceObserver:
    """Follows the events of one job, oldest first."""

    def __init__(self, spec: JobSpec) -> None:
        self._ask(spec)
        self._placement: LaunchPlacement | None = None
        self._launch = 0
        self._nodes: dict[int, _Nodes] = {}
        self._cloud = ""
        self._instance_type = ""
        self._has_named_groups = False
        self._simulated = False

    @property
    def engine(self) -> Engine:
        """The type of the launcher of the newest launch."""
        return self._engine

    def _ask(self, spec: JobSpec) -> None:
        """Use the places that a job file names."""
        self._engine = spec.engine
        is_slurm = spec.engine is Engine.SLURM
        self._options = [
            place for part in spec.parts for place in job_places(part.resources, is_slurm=is_slurm)
        ]

    def see(  # noqa: C901 - one for each kind
        self, event: Event
    ) -> Iterator[Shown]:
        """What one event shows."""
        match event:
            case Resized():
                self._ask(JobSpec.from_stored(event.spec))
            case LaunchRequested():
                self._launch, self._placement = event.launch, event.placement
                yield self._step(event, event.placement.capacity if event.placement else None)
            case CapacityDenied():
                yield self._step(event)
                yield from self._denial(event)
            case NodesReady():
                yield from self._placed(event)
            case TrainingStarted():
                yield self._step(event)
            case NodeLost():
                is_loss = event.is_preemption and event.with_node is None
                yield from self._end(event.group, event.at, is_loss=is_loss)
            case NodeReplaced():
                yield from self._replaced(event)
            case CapacityLost():
                yield from self._lost(event)
            case Finished():
                for group in self._nodes:
                    yield from self._end(group, event.at, is_loss=False)

    def _step(
        self,
        event: LaunchRequested | CapacityDenied | NodesReady | TrainingStarted,
        capacity: CapacityType | None = None,
    ) -> StartStep:
        return StartStep(launch=self._launch, at=event.at, event=type(event), capacity=capacity)

    def _denial(self, event: CapacityDenied) -> Iterator[PlaceObservation]:
        zone = reported_place(self._engine, event.zone, simulated=self._simulated)
        if not zone:
            return
        options = self._options_at(zone) or self._options[:1]
        if self._placement is None:
            options = [each for each in options if each.sells_spot]
        elif self._placement.capacity is not CapacityType.SPOT:
            return
        # A launcher that searches a region reports the region, though it was asked for zones of it.
        seen = {(self._narrower(zone, each), hardware_of(each.option)) for each in options}
        for place, hardware in sorted(seen):
            yield PlaceObservation(
                place=place, hardware=hardware, at=event.at, until=event.at, is_available=False
            )

    def _placed(self, event: NodesReady) -> Iterator[Shown]:
        for group in self._nodes:
            yield from self._end(group, event.at, is_loss=False)
        self._nodes.clear()
        self._cloud, self._instance_type = event.cloud, event.instance_type
        self._has_named_groups, self._simulated = event.has_named_groups, event.simulated
        planned = self._placement and self._placement.capacity is CapacityType.SPOT
        is_spot = planned if event.is_spot is None else event.is_spot
        found = [
            part.is_spot if event.groups else bool(is_spot)
            for part in event.parts
            if part.zone or not event.groups
        ]
        capacity = CapacityType.SPOT if any(found) else CapacityType.ON_DEMAND
        is_known = bool(event.groups) or is_spot is not None
        yield self._step(event, capacity if is_known else None)
        for number, part in enumerate(event.parts):
            is_spot_part = part.is_spot if event.groups else bool(is_spot)
            yield from self._stand(number, part, event.at, is_spot=is_spot_part)

    def _stand(
        self, group: int, part: NodeGroup, at: datetime, *, is_spot: bool
    ) -> Iterator[PlaceObservation]:
        zone = reported_place(
            self._engine, part.zone, part.cloud or self._cloud, simulated=self._simulated
        )
        if not zone:
            return
        kind = (part.instance_type or self._instance_type).lower()
        options = self._options_at(zone)
        same = [each for each in options if str(each.option.options.get("instance_type")) == kind]
        option = next(iter(same or options or self._options))
        place = self._narrower(zone, option) if len(options) == 1 else zone
        nodes = _Nodes(place, hardware_of(option.option) or kind, is_spot, since=at, stand=True)
        yield from self._seat(group, nodes)

    def _seat(self, group: int, nodes: _Nodes) -> Iterator[PlaceObservation]:
        self._nodes[group] = nodes
        if nodes.is_spot:
            yield PlaceObservation(
                place=nodes.place,
                hardware=nodes.hardware,
                at=nodes.since,
                until=None,
                is_available=True,
                node_group=group,
            )

    def _replaced(self, event: NodeReplaced) -> Iterator[Shown]:
        yield from self._end(event.group, event.at, is_loss=False)
        before = self._nodes.get(event.group)
        if event.placed is not None:
            yield from self._stand(
                event.group, event.placed, event.at, is_spot=event.placed.is_spot
            )
        elif before is not None:
            again = _Nodes(before.place, before.hardware, before.is_spot, event.at, stand=True)
            yield from self._seat(event.group, again)

    def _lost(self, event: CapacityLost) -> Iterator[Shown]:
        for group in self._nodes:
            # The launcher releases the other groups with the first one, whose loss ends the attempt.
            is_own = not self._has_named_groups or group == 0
            yield from self._end(group, event.at, is_loss=event.is_preemption and is_own)

    def _end(
        self, group: int, at: datetime, *, is_loss: bool
    ) -> Iterator[PlaceObservation | NodesGone]:
        """The end of a group's nodes, if they stand; a loss also shows that there are none."""
        nodes = self._nodes.get(group)
        if nodes is None or not nodes.is_spot:
            return
        at = max(at, nodes.since)
        if nodes.stand:
            self._nodes[group] = _Nodes(
                nodes.place, nodes.hardware, nodes.is_spot, nodes.since, stand=False
            )
            yield NodesGone(node_group=group, until=at)
        elif not is_loss:
            return
        yield PlaceObservation(
            place=nodes.place,
            hardware=nodes.hardware,
            at=at,
            until=at,
            is_available=not is_loss,
        )

    def _options_at(self, zone: str) -> Sequence[PlaceOption]:
        """The options that the launch may have meant: within the zone's place, or around it."""
        asked = self._placement.places if self._placement else ()
        options = [each for each in self._options if each.name in asked] or self._options
        around = [each for each in options if is_within(zone, each.name)]
        within = [each for each in options if is_within(each.name, zone)]
        is_only = self._engine is Engine.SLURM and len(options) == 1
        return around or within or (options if is_only else [])

    def _narrower(self, zone: str, option: PlaceOption) -> str:
        """The more exact one of a reported place and that of an option."""
        own = option.infra
        is_own = is_within(own, zone) or self._engine is Engine.SLURM
        return own if is_own and own.count("/") > zone.count("/") else zone
