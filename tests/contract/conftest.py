"""Worlds for the contract suite; whatever was started in them ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from contract.slurm_world import SlurmWorld
from contract.worlds import (
    FAIR,
    DemonstratedWorld,
    Kind,
    LocalWorld,
    Market,
    NewMarket,
    NewWorld,
    SimulatedWorld,
    SkyPilotWorld,
    World,
    this_machine,
)
from holdfast.domain.simulation.spot_market import MarketParameters
from slurmstand import Stand
from sqlalchemy import Engine

DENYING = ["local", "simulated", "demonstrated", "skypilot"]
"""Launchers that ask for nodes where there may be none. Slurm has jobs wait instead."""


@pytest.fixture(params=[*DENYING, "slurm"])
def new_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewWorld]:
    """Makes a world, given what its programs do and its weather."""
    with ExitStack() as stack:

        def make(kind: Kind = Kind.LASTS, climate: MarketParameters = FAIR) -> World:
            if request.param == "local":
                return stack.enter_context(this_machine(tmp_path, kind, climate))
            if request.param == "slurm":
                stand: Stand = request.getfixturevalue("slurm")
                return SlurmWorld(stand, stand.new_folder(), kind, climate)
            if request.param == "simulated":
                return SimulatedWorld(kind, climate)
            if request.param == "demonstrated":
                return DemonstratedWorld(kind, climate)
            engine: Engine = request.getfixturevalue("sqlite")
            return SkyPilotWorld(engine, tmp_path, kind, climate)

        yield make


@pytest.fixture(params=["local", "simulated", "demonstrated"])
def new_market(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewMarket]:
    """The same for launchers that take nodes themselves, and read what programs say."""
    with ExitStack() as stack:

        def make(kind: Kind = Kind.LASTS, climate: MarketParameters = FAIR) -> Market:
            if request.param == "local":
                return stack.enter_context(this_machine(tmp_path, kind, climate))
            made = SimulatedWorld if request.param == "simulated" else DemonstratedWorld
            return made(kind, climate)

        yield make


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LocalWorld]:
    """This machine, in fair weather."""
    with this_machine(tmp_path, Kind.LASTS, FAIR) as world:
        yield world
