"""Demo histories, generated once and shared by all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from holdfast.demo import history
from holdfast.demo.history.server import open_at
from holdfast.launchers.simulated import SimulatedClock
from holdfast.server.composition import Application
from holdfast.settings import Settings, SimulatedMarketSettings

NOON = datetime(2026, 5, 20, 12, 17, tzinfo=UTC)
SEED = 7


@pytest.fixture(scope="session")
def made() -> Iterator[Callable[[int, datetime], Application]]:
    """Creates services with a history that ends at a given time, at which their clocks stop."""
    with ExitStack() as homes:

        def make(seed: int, now: datetime) -> Application:
            settings = homes.enter_context(history.home(Settings()))
            application = open_at(
                SimulatedClock(now), seed, settings, SimulatedMarketSettings(), "http://127.0.0.1:1"
            )
            homes.callback(application.services.engine.dispose)
            return application

        yield make


@pytest.fixture(scope="session")
def demo(made: Callable[[int, datetime], Application]) -> Application:
    """The demo service of one seed."""
    return made(SEED, NOON)
