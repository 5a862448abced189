"""What tests of the loop stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import FileLauncher, FixedClock
from holdfast.skypilot_server import ServerDir
from premises import free_port
from skyhouse import NewHouse as NewSkyHouse
from skyhouse import SkyHouse
from skystage import Stage
from sqlalchemy import Engine
from understudy import Understudy, end_all
from watched import House, NewHouse
from yard import NewYard, Yard


@pytest.fixture
def house(tmp_path: Path, sqlite: Engine) -> NewHouse:
    """Makes the house, with a launcher of some kind."""
    return lambda kind=FileLauncher, **more: House(tmp_path, sqlite, kind, **more)


@pytest.fixture
def new_yard(sqlite: Engine) -> NewYard:
    """Makes a job whose checkpoints lie in memory, and the janitor who tidies them up."""
    return lambda **words: Yard(sqlite, FixedClock(), **words)


@pytest.fixture
def new_house(tmp_path: Path, sqlite: Engine) -> NewSkyHouse:
    """Makes a service with one SkyPilot, given what befalls its jobs."""
    return lambda *args, **words: SkyHouse(sqlite, tmp_path / "home", *args, **words)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A person, a server's folder, and an understudy for SkyPilot."""
    person = tmp_path / "person"
    person.mkdir()
    monkeypatch.setenv("HOME", str(person))
    place = ServerDir(tmp_path / "skypilot")
    stage = Stage(person, place, Understudy(tmp_path / "understudy"), free_port())
    yield stage
    for bystander in stage.bystanders:
        bystander.kill()
        bystander.wait()
    end_all(place.home)
