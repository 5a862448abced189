"""Spot markets in which one zone has an outdated price far below all others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.demo.history.market import Market
from holdfast.domain.pricing.quotes import PriceQuery
from holdfast.ports import PriceList
from support.simulated_service import SimulatedService

ZONE: Final = "bygone-1a"
AS_OF: Final = datetime(2023, 4, 1, tzinfo=UTC)


class AgedMarket(Market):
    """Simulated prices, preceded by one from 2023."""

    def find(self, wanted: PriceQuery, at: datetime) -> PriceList:
        found = super().find(wanted, at)
        old = [
            replace(
                quote,
                zone=ZONE,
                as_of=AS_OF,
                on_demand_micros_per_hour=2_000_000,
                spot_micros_per_hour=1_000_000,
            )
            for quote in found.quotes[:1]
        ]
        return replace(found, quotes=(*old, *found.quotes))


class BygoneMarket(AgedMarket):
    """Only the price from 2023."""

    def find(self, wanted: PriceQuery, at: datetime) -> PriceList:
        found = super().find(wanted, at)
        return replace(found, quotes=found.quotes[:1])


def with_old_price(world: SimulatedService, market_of: type[Market] = AgedMarket) -> None:
    """Replace the price catalog of a service with this market."""
    market = market_of(3, world.clock.now() - timedelta(days=30))
    world.services = replace(world.services, prices=market)
    world.app.state.services = world.services
