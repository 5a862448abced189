"""A service over the simulated cloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from world import World, client, open_world


@pytest.fixture
def world(engine: Engine, tmp_path: Path) -> Iterator[World]:
    """A service with nothing in it."""
    app, parts = open_world(engine, tmp_path / "home")
    with client(app) as http:
        yield World(app, http, *parts)
