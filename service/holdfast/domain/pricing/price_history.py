"""What a price was over a time: the lowest, the highest, and what it was on average. Pure.

Which changes of price are news: what a market tells, against what is recorded of a placement. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.domain.attempts import Attempt
from holdfast.domain.billing.rate import RateSchedule, to_ms
from holdfast.domain.events import NodesReady, PriceChanged
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.pricing.quotes import Change, PriceQuery

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Range:
    """Micro-dollars an hour."""

    lowest: int
    mean: int
    """Weighted by how long each price held."""
    highest: int


def range_of(changes: Sequence[Change], since: datetime, until: datetime) -> Range | None:
    """Between what a price lay from `since`, or from its first change, until `until`; None where nothing is known of it."""
    held = [change for change in changes if change.at < until]
    if not held:
        return None
    begins = [max(change.at, since) for change in held]
    spans = [(end - begin) // _MS for begin, end in itertools.pairwise([*begins, until])]
    # One that was over before the time began holds for nothing of it.
    lasting = [
        (change.micros_per_hour, span) for change, span in zip(held, spans, strict=True) if span > 0
    ]
    if not lasting:
        return None
    prices = [micros for micros, _ in lasting]
    paid = sum(micros * span for micros, span in lasting)
    return Range(min(prices), paid // sum(span for _, span in lasting), max(prices))


def price_query(ready: NodesReady, part: NodeGroup) -> PriceQuery | None:
    """The node whose price is asked for; None where nobody pays a market's price for it, or nobody said what it is."""
    cloud, _, rest = part.zone.partition("/")
    region, _, zone = rest.partition("/")
    if ready.simulated or not part.is_spot or not ready.instance_type or cloud != ready.cloud:
        return None
    return PriceQuery(
        cloud=cloud,
        region=region or None,
        zone=zone or None,
        instance_type=ready.instance_type,
    )


def price_changes(
    attempt: Attempt, group: int, told: Iterable[Change], source: str, as_of: datetime
) -> Iterator[PriceChanged]:
    """The changes while the nodes stood that are not recorded yet, each once, whoever asks and how often.

    What held when the nodes came is no change, whatever was told of it then: that is `NodesReady`'s.
    """
    part = attempt.ready.parts[group]
    recorded = [change for change in attempt.changes if change.group == group]
    known = {change.at for change in recorded}
    tariff = RateSchedule.flat(attempt.ready.at, part.micros_per_hour)
    full = RateSchedule.flat(attempt.ready.at, part.on_demand_micros_per_hour)
    for fact in recorded:
        tariff = tariff.changed(fact.at, fact.micros_per_hour)
        full = full.changed(fact.at, fact.on_demand_micros_per_hour)
    for change in sorted(told, key=lambda c: c.at):
        stood = attempt.ready.at < change.at and (
            attempt.ended_at is None or change.at < attempt.ended_at
        )
        micros = change.micros_per_hour * part.nodes
        is_same = tariff.micros_per_hour_at(to_ms(change.at)) == micros
        if not stood or change.at in known or is_same:
            continue
        tariff = tariff.changed(change.at, micros)
        yield PriceChanged(
            at=change.at,
            attempt=attempt.ready.attempt,
            group=group,
            micros_per_hour=micros,
            on_demand_micros_per_hour=full.micros_per_hour_at(to_ms(change.at)),
            price_source=source,
            price_as_of=as_of,
        )
