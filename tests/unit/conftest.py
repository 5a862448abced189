"""What tests of the loop stand on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FileLauncher
from holdfast.store.database import upgrade
from sqlalchemy import Engine
from watched import House, NewHouse


@pytest.fixture
def house(tmp_path: Path, open_engine: Callable[[str], Engine]) -> NewHouse:
    """Makes the house, with a launcher of some kind."""
    engine = open_engine(f"sqlite:///{tmp_path / 'holdfast.db'}")
    upgrade(engine)
    return lambda kind=FileLauncher: House(tmp_path, engine, kind)
