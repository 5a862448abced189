"""Which changes of price are news: what a market tells, against what is recorded of a placement. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from holdfast.domain.attempts import Attempt
from holdfast.domain.carried import NodeGroup
from holdfast.domain.events import NodesReady, PriceChanged
from holdfast.domain.quotes import Change, Wanted
from holdfast.domain.tariff import Tariff, to_ms


def wanted(ready: NodesReady, part: NodeGroup) -> Wanted | None:
    """The node whose price is asked for; None where nobody pays a market's price for it, or nobody said what it is."""
    cloud, _, rest = part.zone.partition("/")
    region, _, zone = rest.partition("/")
    if ready.simulated or not part.is_spot or not ready.instance_type or cloud != ready.cloud:
        return None
    return Wanted(
        cloud=cloud,
        region=region or None,
        zone=zone or None,
        instance_type=ready.instance_type,
    )


def news(
    attempt: Attempt, group: int, told: Iterable[Change], source: str, as_of: datetime
) -> Iterator[PriceChanged]:
    """The changes while the nodes stood that are not recorded yet, each once, whoever asks and how often.

    What held when the nodes came is no change, whatever was told of it then: that is `NodesReady`'s.
    """
    part = attempt.ready.parts[group]
    recorded = [change for change in attempt.changes if change.group == group]
    known = {change.at for change in recorded}
    tariff = Tariff.flat(attempt.ready.at, part.micros_per_hour)
    full = Tariff.flat(attempt.ready.at, part.on_demand_micros_per_hour)
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
