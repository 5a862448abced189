"""What tests of the loop stand on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FileLauncher
from holdfast.store.database import upgrade
from skyhouse import NewHouse as NewSkyHouse
from skyhouse import SkyHouse
from sqlalchemy import Engine
from watched import House, NewHouse


@pytest.fixture
def house(tmp_path: Path, open_engine: Callable[[str], Engine]) -> NewHouse:
    """Makes the house, with a launcher of some kind."""
    engine = open_engine(f"sqlite:///{tmp_path / 'holdfast.db'}")
    upgrade(engine)
    return lambda kind=FileLauncher, **more: House(tmp_path, engine, kind, **more)


@pytest.fixture
def new_house(tmp_path: Path, open_engine: Callable[[str], Engine]) -> NewSkyHouse:
    """Makes a service with one SkyPilot, given what befalls its jobs."""
    engine = open_engine(f"sqlite:///{tmp_path / 'holdfast.db'}")
    upgrade(engine)
    return lambda *args, **words: SkyHouse(engine, tmp_path / "home", *args, **words)
