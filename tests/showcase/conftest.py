"""A demonstration, made once for all that look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from holdfast import showcase
from holdfast.adapters.simulated import SimulatedClock
from holdfast.serving import House
from holdfast.settings import Market, Settings
from holdfast.showcase.opening import open_at

NOON = datetime(2026, 5, 20, 12, 17, tzinfo=UTC)
SEED = 7


@pytest.fixture(scope="session")
def made() -> Iterator[Callable[[int, datetime], House]]:
    """Makes services with a history that ends at a moment, after which their time stands still."""
    with ExitStack() as homes:

        def make(seed: int, now: datetime) -> House:
            settings = homes.enter_context(showcase.home(Settings()))
            house = open_at(SimulatedClock(now), seed, settings, Market(), "http://127.0.0.1:1")
            homes.callback(house.services.engine.dispose)
            return house

        yield make


@pytest.fixture(scope="session")
def house(made: Callable[[int, datetime], House]) -> House:
    """The demonstration of one seed."""
    return made(SEED, NOON)
