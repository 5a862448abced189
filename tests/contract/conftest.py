"""Worlds for the contract suite; whatever was started in them ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from contract.launcher_backends import (
    FAIR,
    DemoBackend,
    LauncherBackend,
    LocalBackend,
    NewMarket,
    NewWorld,
    PreemptibleBackend,
    ProgramKind,
    SimulatedBackend,
    SkyPilotBackend,
    this_machine,
)
from contract.slurm_launcher import SlurmBackend
from holdfast.domain.simulation.spot_market import MarketParameters
from local_slurm import SlurmCluster
from sqlalchemy import Engine

DENYING = ["local", "simulated", "demonstrated", "skypilot"]
"""Launchers that ask for nodes where there may be none. Slurm has jobs wait instead."""


@pytest.fixture(params=[*DENYING, "slurm"])
def new_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewWorld]:
    """Makes a world, given what its programs do and its weather."""
    with ExitStack() as stack:

        def make(
            kind: ProgramKind = ProgramKind.LASTS, climate: MarketParameters = FAIR
        ) -> LauncherBackend:
            if request.param == "local":
                return stack.enter_context(this_machine(tmp_path, kind, climate))
            if request.param == "slurm":
                cluster: SlurmCluster = request.getfixturevalue("slurm")
                return SlurmBackend(cluster, cluster.new_folder(), kind, climate)
            if request.param == "simulated":
                return SimulatedBackend(kind, climate)
            if request.param == "demonstrated":
                return DemoBackend(kind, climate)
            engine: Engine = request.getfixturevalue("sqlite")
            return SkyPilotBackend(engine, tmp_path, kind, climate)

        yield make


@pytest.fixture(params=["local", "simulated", "demonstrated"])
def new_market(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewMarket]:
    """The same for launchers that take nodes themselves, and read what programs say."""
    with ExitStack() as stack:

        def make(
            kind: ProgramKind = ProgramKind.LASTS, climate: MarketParameters = FAIR
        ) -> PreemptibleBackend:
            if request.param == "local":
                return stack.enter_context(this_machine(tmp_path, kind, climate))
            made = SimulatedBackend if request.param == "simulated" else DemoBackend
            return made(kind, climate)

        yield make


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LocalBackend]:
    """This machine, in fair weather."""
    with this_machine(tmp_path, ProgramKind.LASTS, FAIR) as world:
        yield world
