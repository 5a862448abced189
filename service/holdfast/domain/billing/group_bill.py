"""The node groups of an attempt in its bill: stays, zones, rates and nodes over time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.domain.attempts import Attempt, RateChange
from holdfast.domain.billing.phases import Phases, Span, cost_by_phase
from holdfast.domain.billing.rate import RateSchedule, to_ms
from holdfast.domain.events import Cause, NodeLost, NodeReplaced, PriceChanged
from holdfast.domain.events.values import NodeGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceStep:
    """Price of nodes from a time on."""

    at: datetime
    group: int
    micros_per_hour: int
    source: str
    """Source of the price, or the node that was lost or replaced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupStay:
    """A time in which the nodes of a group stood in one place."""

    placed: NodeGroup
    """Their place, and their first price."""
    since: datetime
    until: datetime | None
    """When the last of them was lost; None until the end of the attempt."""
    lost: NodeLost | None
    """The loss of the first of them; None until the end of the attempt."""

    def bounds_ms(self, begin_ms: int, end_ms: int) -> tuple[int, int]:
        """Begin and end within a span, in milliseconds since 1970."""
        begin = min(max(to_ms(self.since), begin_ms), end_ms)
        return begin, end_ms if self.until is None else min(max(to_ms(self.until), begin), end_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBill:
    """The identical nodes of an attempt."""

    name: str
    """Name of the group in the job file; empty if the file has none."""
    zones: tuple[tuple[int, str], ...]
    """Zones of the nodes with the milliseconds since 1970 from which they stood there, in order; at
    least one. Empty before absent nodes were there."""
    nodes: int
    is_spot: bool
    rate: RateSchedule
    on_demand_rate: RateSchedule
    running: RateSchedule
    """Number of nodes that ran, over time like a rate."""
    stays: tuple[GroupStay, ...]
    """When all or some of the nodes ran, in order."""
    micros: Phases
    on_demand_micros: Phases
    """On-demand cost of the same phases."""

    @property
    def zone(self) -> str:
        """The newest zone; empty if the nodes were never there."""
        return self.zones[-1][1]

    def node_ms(self, begin_ms: int, end_ms: int) -> int:
        """Time in a span multiplied by the number of nodes that ran."""
        return self.running.accrue(begin_ms, end_ms)

    def split_by_zone(self, begin_ms: int, end_ms: int) -> Iterator[tuple[str, int, int]]:
        """Split a span by the zones of the nodes, without the time before they were there."""
        ends = (*(at_ms for at_ms, _ in self.zones[1:]), end_ms)
        for (at_ms, zone), until_ms in zip(self.zones, ends, strict=True):
            since, until = max(begin_ms, at_ms), min(end_ms, until_ms)
            if zone and since < until:
                yield zone, since, until


def group_stays(attempt: Attempt, group: int) -> Iterator[GroupStay]:
    """The stays of a group of nodes in an attempt, in order."""
    ready, lost = attempt.ready, None
    placed, running = ready.running_parts[group]
    since = ready.at if running else None
    for change in attempt.changes:
        if change.group != group or isinstance(change, PriceChanged):
            continue
        if isinstance(change, NodeReplaced):
            lost = None
            if since is None:
                placed, since = change.placed or placed, max(change.at, ready.at)
            continue
        lost = lost or change
        if since is not None and not change.nodes:
            yield GroupStay(placed=placed, since=since, until=change.at, lost=lost)
            since = None
    if since is not None:
        yield GroupStay(placed=placed, since=since, until=None, lost=None)


def group_rates(attempt: Attempt, group: int) -> tuple[RateSchedule, RateSchedule]:
    """The paid and the on-demand rate of a group of nodes, after all recorded changes."""
    part = attempt.ready.parts[group]
    paid = RateSchedule.flat(attempt.ready.at, part.micros_per_hour)
    full = RateSchedule.flat(attempt.ready.at, part.on_demand_micros_per_hour)
    for change in attempt.changes:
        if change.group != group:
            continue
        if isinstance(change, PriceChanged):
            paid = paid.with_price_change(change.at, change.micros_per_hour)
            full = full.with_price_change(change.at, change.on_demand_micros_per_hour)
        else:
            paid = paid.with_node_change(change.at, change.micros_per_hour)
            full = full.with_node_change(change.at, change.on_demand_micros_per_hour)
    return paid, full


def group_bills(attempt: Attempt, spans: Sequence[Span], begin_ms: int) -> tuple[GroupBill, ...]:
    """The groups of an attempt, whose paid time begins at `begin_ms`."""
    groups = []
    for number, (part, running_nodes) in enumerate(attempt.ready.running_parts):
        paid, full = group_rates(attempt, number)
        running = RateSchedule.flat(attempt.ready.at, running_nodes)
        zones, is_spot = [(begin_ms, part.zone)], part.is_spot
        for change in attempt.changes:
            if change.group != number or isinstance(change, PriceChanged):
                continue
            running = running.with_node_change(change.at, change.nodes)
            if isinstance(change, NodeReplaced) and (placed := change.placed):
                is_spot = placed.is_spot
                if placed.zone != zones[-1][1]:
                    zones.append((max(to_ms(change.at), begin_ms), placed.zone))
        groups.append(
            GroupBill(
                name=part.name,
                zones=tuple(zones),
                nodes=part.nodes,
                is_spot=is_spot,
                rate=paid,
                on_demand_rate=full,
                running=running,
                stays=tuple(group_stays(attempt, number)),
                micros=cost_by_phase(spans, paid, begin_ms),
                on_demand_micros=cost_by_phase(spans, full, begin_ms),
            )
        )
    return tuple(groups)


def price_steps(changes: Sequence[RateChange]) -> Iterator[PriceStep]:
    """The price after each moment with changes of a group, as nodes of a group change together."""
    together: dict[tuple[datetime, int], list[RateChange]] = {}
    for change in sorted(changes, key=lambda each: each.at):
        together.setdefault((change.at, change.group), []).append(change)
    for (at, group), same in together.items():
        yield PriceStep(
            at=at,
            group=group,
            micros_per_hour=same[-1].micros_per_hour,
            source=_price_source(same),
        )


def _price_source(changes: Sequence[RateChange]) -> str:
    last = changes[-1]
    if isinstance(last, PriceChanged):
        return last.price_source
    nodes = [str(each.node) for each in changes if isinstance(each, type(last))]
    subject = f"node {nodes[0]} was" if len(nodes) == 1 else f"nodes {', '.join(nodes)} were"
    if isinstance(last, NodeReplaced):
        return f"{subject} replaced"
    return f"{subject} {'released' if last.cause is Cause.ENDED else 'lost'}"


def is_estimate(change: RateChange) -> bool:
    """Whether the price after a change is an estimate."""
    return not isinstance(change, NodeLost) and change.is_price_estimate
