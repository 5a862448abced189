"""A service over the simulated cloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from support.simulated_service import SimulatedService, client, open_world


@pytest.fixture
def world(engine: Engine, tmp_path: Path) -> Iterator[SimulatedService]:
    """A simulated service without jobs."""
    app, parts = open_world(engine, tmp_path / "home")
    with client(app) as http:
        yield SimulatedService(app, http, *parts)
