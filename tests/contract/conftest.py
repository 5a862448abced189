"""Worlds for the contract suite; whatever was started in them ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from contract.worlds import FAIR, Kind, LocalWorld, NewWorld, SimulatedWorld, World, this_machine
from holdfast.domain.weather import Climate


@pytest.fixture(params=["local", "simulated"])
def new_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewWorld]:
    """Makes a world, given what its programs do and its weather."""
    with ExitStack() as stack:

        def make(kind: Kind = Kind.LASTS, climate: Climate = FAIR) -> World:
            if request.param == "local":
                return stack.enter_context(this_machine(tmp_path, kind, climate))
            return SimulatedWorld(kind, climate)

        yield make


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LocalWorld]:
    """This machine, in fair weather."""
    with this_machine(tmp_path, Kind.LASTS, FAIR) as world:
        yield world
