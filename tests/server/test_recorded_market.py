"""The recording that a service replays: how it is read, and when it begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast.clock import SIMULATION_START, SimulatedClock
from holdfast.errors import BadRequest
from holdfast.server.recorded_market import market_parameters, open_recording
from holdfast.settings import SimulatedMarketSettings
from typer.testing import CliRunner

LATER = SIMULATION_START + timedelta(days=1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a service."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the traces of two zones."""
    write(tmp_path / "traces" / "us-west-2a_v100.json", [0, 1, None])
    write(tmp_path / "traces" / "us-west-2b_v100.json", [8, 8, 8])
    return tmp_path / "traces"


def write(file: Path, data: list[Any], gap_s: float = 600) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"metadata": {"gap_seconds": gap_s}, "data": data}))


def test_zones_are_the_traces(folder: Path, home: Path) -> None:
    found = open_recording(folder, home, SIMULATION_START)

    assert (found.start, found.gap_s, found.ticks) == (SIMULATION_START, 600.0, 3)
    assert [(zone.name, zone.region, zone.counts, zone.micros) for zone in found.zones] == [
        ("us-west-2a_v100", "us-west-2", (0, 1, None), ()),
        ("us-west-2b_v100", "us-west-2", (8, 8, 8), ()),
    ]


def test_prices_lie_beside_the_traces(folder: Path, home: Path) -> None:
    prices = {"us-west-2a_v100": [0.9731, 1, 2], "us-west-2b_v100": [1.5, 1.5, 1.5]}
    (folder / "prices.json").write_text(json.dumps(prices))

    found = open_recording(folder, home, SIMULATION_START)

    assert [zone.micros for zone in found.zones] == [
        (973_100, 1_000_000, 2_000_000),
        (1_500_000,) * 3,
    ]


def test_restarted_service_continues_the_replay(folder: Path, home: Path, tmp_path: Path) -> None:
    first = open_recording(folder, home, SIMULATION_START)

    assert open_recording(folder, home, LATER) == first
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert open_recording(folder, elsewhere, LATER).start == LATER
    write(folder / "us-west-2a_v100.json", [1, 1, 1])
    assert open_recording(folder, home, LATER).start == LATER, (
        "another recording starts from its beginning"
    )


def test_settings_become_the_parameters(folder: Path, home: Path) -> None:
    settings = SimulatedMarketSettings(
        market_trace=folder, on_demand_wait_s=60.0, on_demand_denial_rate=0.25
    )

    found = market_parameters(settings, home, SimulatedClock())

    assert found.zone_names == ("us-west-2a_v100", "us-west-2b_v100")
    assert (found.on_demand_wait_s, found.on_demand_denial_rate) == (60.0, 0.25)
    assert market_parameters(SimulatedMarketSettings(), home, SimulatedClock()).recording is None


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "prices.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_remove, "not a directory; name one with recorded traces"),
        (_empty, "no file there ends with .json or .csv"),
        (
            lambda folder: write(folder / "z.json", [1, 1, 1], gap_s=60),
            "us-west-2a_v100 has ticks of 600 s, z of 60 s; run them one after the other",
        ),
        (lambda folder: write(folder / "z.json", [1]), "zones that are replayed together must"),
        (lambda folder: write(folder / "use1-az1.json", [1, 1, 1]), "is the id of a zone"),
        (lambda folder: (folder / "z.json").write_text("["), "z: not JSON"),
        (
            lambda folder: (folder / "prices.json").write_text('{"other": [1]}'),
            "no prices for us-west-2a_v100",
        ),
    ],
)
def test_bad_folder_is_refused_with_a_sentence(
    folder: Path, home: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(folder)

    with pytest.raises(BadRequest) as refused:
        open_recording(folder, home, SIMULATION_START)

    assert message in str(refused.value)
    assert not list(home.iterdir())


def test_service_with_a_bad_folder_does_not_start(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    missing = tmp_path / "missing"

    for words in (["serve"], ["serve", "--demo", "7"]):
        refused = CliRunner().invoke(app, [*words, "--port", "0", "--market-trace", str(missing)])

        assert isinstance(refused.exception, BadRequest)
        expected = "--market-trace: a demo" if "--demo" in words else f"market trace {missing}: not"
        assert refused.exception.detail.startswith(expected)
