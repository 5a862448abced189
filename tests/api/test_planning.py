"""Estimates before a job runs, with the prices of the catalog."""

from __future__ import annotations

import re

import pytest
from holdfast.cli.app import app
from support.aged_market import BygoneMarket, with_old_price
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""The database is not queried."""


@ON_SQLITE
def test_loss_is_priced_by_the_caller_or_the_catalog(world: SimulatedService) -> None:
    request = {"at_hour": 67, "every_hours": 4}

    own = world.http.get("/v1/what-if/loss", params={**request, "usd_per_day": 2000}).json()
    listed = world.http.get(
        "/v1/what-if/loss", params={**request, "accelerator": "A100:8", "nodes": 8}
    ).json()
    neither = world.http.get("/v1/what-if/loss", params=request)

    assert (own["micros_without"], own["roughly_micros_with"]) == (5_583_333_333, 300_000_000)
    assert listed["micros_per_day"] / 1e6 == pytest.approx(4000, rel=0.2), "64 of 40 GB, on demand"
    assert listed["price_source"] not in {"", "you"}
    assert (neither.status_code, "give either usd_per_day" in neither.json()["detail"]) == (
        400,
        True,
    )


@ON_SQLITE
def test_advice_has_prices_and_reasons(world: SimulatedService) -> None:
    body = world.http.get("/v1/advice", params={"params": "7B", "hours_left": 3}).json()
    wrong = world.http.get("/v1/advice", params={"params": "huge"})

    [a100] = body["fits"]
    assert (a100["accelerator"], body["spot"], len(body["reasons"])) == ("A100", False, 1)
    assert a100["spot_micros_per_hour"] < a100["on_demand_micros_per_hour"] < 5_000_000
    assert "T4" in {one["accelerator"] for one in body["others"]}
    assert wrong.status_code == 400


@ON_SQLITE
def test_command_line_prints_losses_cadence_and_advice(
    world: SimulatedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(*words: str) -> str:
        return CliRunner().invoke(app, list(words)).stdout

    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        loss = printed("what-if", "loss", "--usd-per-day", "2000", "--at", "67h", "--every", "4h")
        cadence = printed("what-if", "cadence", "--cost", "45s", "--between-failures", "3h")
        advice = printed("advise", "--params", "7B", "--no-checkpoints")
        small = printed("advise", "--params", "100M")
        wrong = CliRunner().invoke(app, ["what-if", "loss", "--at", "soon"])

    assert "at most 67 h and $5,583.33 (about $5,500)" in loss
    assert "at most 4 h and $333.33 (about $300)" in loss
    assert "best: every 16.4 min" in cadence
    assert "7,000,000,000 parameters: 112.0 GB with Adam" in advice
    assert "use on-demand nodes: without checkpoints" in advice
    assert "no price is known" not in advice
    assert re.search(r"^✓ +T4 +65 +unknown +unknown +unknown", small, re.MULTILINE)
    assert "no price is known for T4 and L4: the model fits, but compare the prices" in small
    assert "--at soon: write a time" in str(wrong.exception)


@ON_SQLITE
def test_newer_prices_replace_old_ones_in_advice_and_losses(
    world: SimulatedService,
) -> None:
    with_old_price(world)
    request = {"at_hour": 10, "accelerator": "H100:8", "spot": True}

    advice = world.http.get("/v1/advice", params={"params": "7B"}).json()
    loss = world.http.get("/v1/what-if/loss", params=request).json()

    [h100] = [one for one in advice["others"] if one["accelerator"] == "H100"]
    assert h100["on_demand_micros_per_hour"] == 55_040_000 / 8
    assert h100["spot_micros_per_hour"] > 1_000_000 / 8
    assert (h100["is_old"], h100["as_of"][:4] > "2023") == (False, True)
    assert loss["micros_per_day"] > 24 * 1_000_000
    assert (loss["is_price_old"], loss["price_as_of"][:4] > "2023") == (False, True)


@ON_SQLITE
def test_advice_marks_an_old_price_where_no_newer_one_is_known(
    world: SimulatedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_old_price(world, BygoneMarket)
    request = {"at_hour": 10, "accelerator": "H100:8", "spot": True}

    loss = world.http.get("/v1/what-if/loss", params=request).json()
    advice = world.http.get("/v1/advice", params={"params": "7B"}).json()
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        table = CliRunner().invoke(app, ["advise", "--params", "7B"]).stdout
        command = ["what-if", "loss", "--at", "10h", "--gpus", "H100:8"]
        priced = CliRunner().invoke(app, command).stdout

    [h100] = [one for one in advice["others"] if one["accelerator"] == "H100"]
    assert (h100["is_old"], h100["as_of"][:10]) == (True, "2023-04-01")
    assert (loss["is_price_old"], loss["price_as_of"][:10]) == (True, "2023-04-01")
    [row] = [line for line in table.splitlines() if " H100 " in line]
    assert row.endswith("2023-04-01 (old)")
    assert "(old) is older than 90 days: no newer price is known" in table
    assert "2023-04-01 (old))" in priced.splitlines()[0]
