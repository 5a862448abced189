"""Launcher backends of the contract tests; each test ends the processes that it started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from contract.launcher_backends import (
    NO_PREEMPTIONS,
    DemoBackend,
    LauncherBackend,
    LocalBackend,
    NewBackend,
    NewMarket,
    PreemptibleBackend,
    ProgramKind,
    SimulatedBackend,
    SkyPilotBackend,
    local_backend,
)
from contract.slurm_launcher import SlurmBackend
from holdfast.domain.simulation.spot_market import MarketParameters
from local_slurm import SlurmCluster
from sqlalchemy import Engine

WITH_DENIALS = ["local", "simulated", "demonstrated", "skypilot"]
"""Launchers whose requests for nodes can be denied. Slurm queues jobs instead."""


@pytest.fixture(params=[*WITH_DENIALS, "slurm"])
def new_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewBackend]:
    """Create a backend from the kind of its programs and the behavior of its launcher."""
    with ExitStack() as stack:

        def make(
            kind: ProgramKind = ProgramKind.RUNS, market: MarketParameters = NO_PREEMPTIONS
        ) -> LauncherBackend:
            if request.param == "local":
                return stack.enter_context(local_backend(tmp_path, kind, market))
            if request.param == "slurm":
                cluster: SlurmCluster = request.getfixturevalue("slurm")
                return SlurmBackend(cluster, cluster.new_folder(), kind, market)
            if request.param == "simulated":
                return SimulatedBackend(kind, market)
            if request.param == "demonstrated":
                return DemoBackend(kind, market)
            engine: Engine = request.getfixturevalue("sqlite")
            return SkyPilotBackend(engine, tmp_path, kind, market)

        yield make


@pytest.fixture(params=["local", "simulated", "demonstrated"])
def new_market(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewMarket]:
    """Create a backend whose launcher preempts nodes itself and reads the output of programs."""
    with ExitStack() as stack:

        def make(
            kind: ProgramKind = ProgramKind.RUNS, market: MarketParameters = NO_PREEMPTIONS
        ) -> PreemptibleBackend:
            if request.param == "local":
                return stack.enter_context(local_backend(tmp_path, kind, market))
            made = SimulatedBackend if request.param == "simulated" else DemoBackend
            return made(kind, market)

        yield make


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LocalBackend]:
    """The local launcher, with nothing going wrong."""
    with local_backend(tmp_path, ProgramKind.RUNS, NO_PREEMPTIONS) as backend:
        yield backend
