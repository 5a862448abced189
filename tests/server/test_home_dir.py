"""The service's home: for its own account alone."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from holdfast.server import composition
from holdfast.settings import Settings, SimulatedMarketSettings


@pytest.mark.parametrize(("mode", "warned"), [(0o700, False), (0o755, True), (0o710, True)])
def test_an_open_home_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)

    with caplog.at_level(logging.WARNING):
        house = composition.build(
            Settings(home=home), SimulatedMarketSettings(), "http://127.0.0.1:8642"
        )
    house.services.engine.dispose()

    assert (f"chmod 700 {home}" in caplog.text) is warned


def test_members_are_refused_local_and_slurm_by_default(tmp_path: Path) -> None:
    house = composition.build(
        Settings(home=tmp_path / "home"), SimulatedMarketSettings(), "http://127.0.0.1:8642"
    )
    house.services.engine.dispose()

    confinement = house.services.confinement
    assert {engine.value for engine in confinement.refused} == {"local", "slurm"}
    assert confinement.folders.home == tmp_path / "home"
