"""The service's home directory is private to its account."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from holdfast.server import composition
from holdfast.settings import Settings, SimulatedMarketSettings


@pytest.mark.parametrize(("mode", "warned"), [(0o700, False), (0o755, True), (0o710, True)])
def test_home_open_to_others_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)

    with caplog.at_level(logging.WARNING):
        composed = composition.build(
            Settings(home=home), SimulatedMarketSettings(), "http://127.0.0.1:8642"
        )
    composed.services.engine.dispose()

    assert (f"chmod 700 {home}" in caplog.text) is warned


def test_members_are_refused_local_and_slurm_by_default(tmp_path: Path) -> None:
    composed = composition.build(
        Settings(home=tmp_path / "home"), SimulatedMarketSettings(), "http://127.0.0.1:8642"
    )
    composed.services.engine.dispose()

    confinement = composed.services.confinement
    assert {engine.value for engine in confinement.refused} == {"local", "slurm"}
    assert confinement.folders.home == tmp_path / "home"
