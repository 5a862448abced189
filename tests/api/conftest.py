"""A service over the simulated cloud."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from world import World, client, open_world


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    """A service with nothing in it."""
    app, parts = open_world(engine)
    with client(app) as http:
        yield World(app, http, *parts)
