"""Price history: statistics over a time, and unrecorded price changes of nodes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.domain.attempts import Attempt
from holdfast.domain.billing.group_bill import group_rates, group_stays
from holdfast.domain.billing.rate import to_ms
from holdfast.domain.events import NodesReady, PriceChanged
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.pricing.quotes import PricePoint, PriceQuery

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class PriceRange:
    """Price range in micro-dollars per hour."""

    lowest: int
    mean: int
    """Mean weighted by the duration of each price."""
    highest: int


def price_range(
    changes: Sequence[PricePoint], since: datetime, until: datetime
) -> PriceRange | None:
    """Range of a price from `since`, or from its first change, until `until`; None without data."""
    held = [change for change in changes if change.at < until]
    if not held:
        return None
    begins = [max(change.at, since) for change in held]
    spans = [(end - begin) // _MS for begin, end in itertools.pairwise([*begins, until])]
    # A price that ended before the period does not count.
    lasting = [
        (change.micros_per_hour, span) for change, span in zip(held, spans, strict=True) if span > 0
    ]
    if not lasting:
        return None
    prices = [micros for micros, _ in lasting]
    paid = sum(micros * span for micros, span in lasting)
    return PriceRange(min(prices), paid // sum(span for _, span in lasting), max(prices))


def price_query(ready: NodesReady, part: NodeGroup) -> PriceQuery | None:
    """The price query for a group of nodes.

    None if they have no market price or an unknown type.
    """
    cloud, _, rest = part.zone.partition("/")
    region, _, zone = rest.partition("/")
    kind = part.instance_type or ready.instance_type
    if ready.simulated or not part.is_spot or not kind or cloud != (part.cloud or ready.cloud):
        return None
    return PriceQuery(
        cloud=cloud,
        region=region or None,
        zone=zone or None,
        instance_type=kind,
    )


def price_changes(
    attempt: Attempt, group: int, points: Iterable[PricePoint], source: str, as_of: datetime
) -> Iterator[PriceChanged]:
    """Price changes during the life of the nodes that are not recorded yet.

    Repeated calls yield each once. The price at the start of the nodes is not a change, whatever
    was reported later: it belongs to `NodesReady`.
    """
    part = attempt.ready.parts[group]
    known = {change.at for change in attempt.changes if change.group == group}
    tariff, full = group_rates(attempt, group)
    lives = [(stay.since, stay.until or attempt.ended_at) for stay in group_stays(attempt, group)]
    for change in sorted(points, key=lambda c: c.at):
        is_current = any(
            since < change.at and (until is None or change.at < until) for since, until in lives
        )
        micros = change.micros_per_hour * part.nodes
        is_same = tariff.micros_per_hour_at(to_ms(change.at)) == micros
        if not is_current or change.at in known or is_same:
            continue
        tariff = tariff.with_price_change(change.at, micros)
        yield PriceChanged(
            at=change.at,
            attempt=attempt.ready.attempt,
            group=group,
            micros_per_hour=micros,
            on_demand_micros_per_hour=full.micros_per_hour_at(to_ms(change.at)),
            price_source=source,
            price_as_of=as_of,
        )
