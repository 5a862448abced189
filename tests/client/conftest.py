"""A service over the simulated cloud, whose clock advances while a test waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from support.simulated_service import SimulatedService, client, open_world, served


@pytest.fixture
def world(engine: Engine, tmp_path: Path) -> Iterator[SimulatedService]:
    """A simulated service without jobs."""
    app, parts = open_world(engine, tmp_path / "home")
    with client(app) as http:
        yield SimulatedService(app, http, *parts)


@pytest.fixture
def url(world: SimulatedService) -> Iterator[str]:
    """The address of the service."""
    with served(world) as url:
        yield url


@pytest.fixture
def passing_time(world: SimulatedService) -> Iterator[None]:
    """Advance the clock of the service until the end of the test."""
    over = threading.Event()

    def advance() -> None:
        while not over.wait(0.01):
            world.pass_time(1)

    thread = threading.Thread(target=advance)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
