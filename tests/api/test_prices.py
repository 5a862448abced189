"""Prices in the API, on the command line, and with their sources in a bill."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from holdfast.api.routes.billing import bill_view
from holdfast.api.schemas.billing import BillOut
from holdfast.cli.app import app
from holdfast.cli.billing import print_bill
from holdfast.client import Refused
from holdfast.demo.history.market import Market
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.events import Event, NodesReady, decode, encode
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.pricing.quotes import PricePoint, PriceQuery
from support.aged_market import ZONE, with_old_price
from support.events import at, launched, ready, submitted
from support.simulated_service import SimulatedService, client, served
from typer.testing import CliRunner


def test_spot_price_is_compared_with_on_demand(world: SimulatedService) -> None:
    body = world.http.get("/v1/prices", params={"accelerator": "A100:8", "cloud": "gcp"}).json()

    assert body["prices"][0] == {
        "cloud": "gcp",
        "region": "me-west1",
        "zone": "me-west1-a",
        "instance_type": "a2-highgpu-8g",
        "accelerator": "A100",
        "count": 8.0,
        "spot_micros_per_hour": 11_145_280,
        "on_demand_micros_per_hour": 32_325_790,
        "saved_micros_per_hour": 21_180_510,
        "as_of": "2026-11-21T00:00:00Z",
        "is_old": False,
        "source": "snapshot: SkyPilot catalog v8/gcp/vms.csv 006059e0",
        "tier": "snapshot",
        "is_estimate": False,
        "repairs": [],
    }
    each = [item["spot_micros_per_hour"] for item in body["prices"]]
    assert each == sorted(each)
    assert {item["accelerator"] for item in body["prices"]} == {"A100"}


def test_old_prices_are_marked_and_listed_last(world: SimulatedService) -> None:
    prices = world.http.get("/v1/prices", params={"limit": 1000}).json()["prices"]

    marks = [price["is_old"] for price in prices]
    dates = {price["as_of"][:4] for price in prices if price["is_old"]}

    assert marks == sorted(marks)
    assert "2023" in dates
    assert "2026" not in dates


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_old_price_is_listed_last_in_the_history(
    world: SimulatedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_old_price(world)

    places = world.http.get("/v1/prices/history?accelerator=H100:8").json()["series"]
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        printed = CliRunner().invoke(app, ["prices", "-a", "H100:8", "--since", "30d"]).stdout

    assert [one["now"]["is_old"] for one in places] == [False, False, False, True]
    assert places[-1]["now"]["zone"] == ZONE
    *_, last, note, _ = printed.splitlines()
    assert ZONE in last
    assert "2023-04-01 (old)" in last
    assert note.startswith("(old) is older than 90 days")


def test_prices_without_a_count_list_all_counts(
    world: SimulatedService,
) -> None:
    body = world.http.get("/v1/prices?accelerator=h100&limit=3").json()
    rest = world.http.get("/v1/prices?accelerator=H100&limit=1000").json()

    assert len(body["prices"]) == 3
    assert body["left_out"] == len(rest["prices"]) - 3
    assert {item["count"] for item in rest["prices"]} == {1, 8}


def test_zone_without_a_spot_market_has_no_spot_price(world: SimulatedService) -> None:
    body = world.http.get("/v1/prices?cloud=aws&region=ap-south-1&accelerator=A100:8").json()

    assert {
        (
            item["spot_micros_per_hour"],
            item["saved_micros_per_hour"],
            tuple(item["repairs"]),
        )
        for item in body["prices"]
    } == {(None, None, ("spot-like-on-demand",))}


def test_unknown_price_is_a_single_estimate(world: SimulatedService) -> None:
    [body] = world.http.get("/v1/prices?accelerator=A100:8&cloud=azure").json()["prices"]

    assert (body["tier"], body["is_estimate"], body["cloud"]) == ("estimate", True, "azure")
    assert body["spot_micros_per_hour"] == 34_600_550
    assert body["source"].startswith("estimate: the most expensive of its kind, in gcp/us-west3")


def test_implausible_rows_are_counted_and_listed(world: SimulatedService) -> None:
    counted = world.http.get("/v1/prices?accelerator=H200").json()
    listed = world.http.get("/v1/prices?accelerator=H200&cloud=gcp&refused=true").json()

    assert (counted["refused_count"], counted["refused"]) == (4, [])
    assert listed["refused_count"] == 4
    assert listed["refused"][0] == {
        "cloud": "gcp",
        "region": "asia-south1",
        "zone": "asia-south1-b",
        "instance_type": "",
        "accelerator": "H200",
        "count": "8",
        "on_demand": "36.60258",
        "spot": "38.7368",
        "rule": "gpu-without-host",
        "reason": "a GPU is not sold without a host",
    }


@pytest.mark.parametrize(
    ("params", "detail"),
    [
        (
            {"accelerator": "A100-40GB:8"},
            "accelerator: 'A100-40GB' is unknown; did you mean 'A100'?",
        ),
        (
            {"accelerator": "A100:many"},
            "accelerator: 'A100:many' is not valid; write a name and a count, such as A100:8",
        ),
        (
            {"accelerator": "A100:0"},
            "accelerator: 'A100:0' is not valid; write a name and a count, such as A100:8",
        ),
        ({"cloud": "awz"}, "cloud: 'awz' is an unknown infrastructure; did you mean 'aws'?"),
    ],
)
def test_misspelled_query_is_refused_with_a_suggestion(
    world: SimulatedService, params: dict[str, str], detail: str
) -> None:
    answer = world.http.get("/v1/prices", params=params)

    assert (answer.status_code, answer.json()["detail"]) == (400, detail)


def test_prices_require_authentication(world: SimulatedService) -> None:
    assert client(world.app, "192.0.2.7").get("/v1/prices").status_code == 401


@pytest.fixture
def service(
    world: SimulatedService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """A running service that the command line is configured for."""
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
        yield


@pytest.mark.usefixtures("service")
def test_the_command_line_shows_prices_as_a_table_and_as_json() -> None:
    command = ["prices", "--accelerator", "A100:8", "--cloud", "gcp", "--limit", "2"]

    table = CliRunner().invoke(app, command).output
    body = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)

    head, first, *_, last = table.splitlines()
    assert head.split("  ")[0] == "ACCELERATORS"
    assert first.split()[:7] == [
        "A100:8",
        "gcp/me-west1/me-west1-a",
        "a2-highgpu-8g",
        "$11.15",
        "$32.33",
        "$21.18",
        "2026-11-21",
    ]
    assert last == "5 more; name a cloud or a region, or raise --limit"
    assert [len(body["prices"]), body["left_out"]] == [2, 5]


@pytest.mark.usefixtures("service")
def test_command_line_marks_estimates_and_lists_rejections() -> None:
    guessed = CliRunner().invoke(app, ["prices", "-a", "T4:1", "--cloud", "azure"]).output
    lies = CliRunner().invoke(app, ["prices", "-a", "L4", "--refused"]).output
    slip = CliRunner().invoke(app, ["prices", "--cloud", "awz"]).exception

    assert "~$3.06" in guessed
    assert "~ price unknown, assumed high" in guessed
    assert "rejected: - L4:1 in gcp/us-west4/us-west4-a: a GPU is not sold" in lies
    assert isinstance(slip, Refused)


def _bill(*nodes: NodesReady) -> BillOut:
    events: list[Event] = [submitted(0), launched(0), *nodes]
    return bill_view(fold("job-1", events), compute_bill(events, {}, at(3600)), [])


def test_bill_names_price_sources_and_marks_estimates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    guess = replace(
        ready(0),
        price_source="estimate: the most expensive of its kind",
        price_as_of=at(0),
        is_price_estimate=True,
    )

    account = _bill(guess)
    print_bill(account)

    [attempt] = account.attempts
    assert (account.is_price_estimate, attempt.is_price_estimate) == (True, True)
    assert (attempt.price_source, attempt.price_as_of) == (guess.price_source, at(0))
    output = capsys.readouterr().out
    assert "paid ~$" in output
    assert "price of attempt 1: ~ unknown, assumed high: estimate: the most expensive" in output
    assert "simulated" not in output


def test_bill_at_known_prices_is_unmarked(capsys: pytest.CaptureFixture[str]) -> None:
    reported = replace(ready(0), price_source="SkyPilot's cost report", price_as_of=at(60))

    print_bill(_bill(reported))

    printed = capsys.readouterr().out
    assert "~" not in printed
    assert "price of attempt 1: SkyPilot's cost report, as of 2026-03-01" in printed


def test_event_without_price_source_is_read_unchanged() -> None:
    body = encode(ready(0))
    for name in ("price_source", "price_as_of", "is_price_estimate"):
        del body[name]

    assert decode("NodesReady", at(0), body) == ready(0)


def test_event_keeps_its_price_source() -> None:
    event = replace(ready(0), price_source="x", price_as_of=at(5), is_price_estimate=True)

    assert decode("NodesReady", at(0), encode(event)) == event


def test_price_history_covers_the_requested_days(world: SimulatedService) -> None:
    """Prices of a known market.

    They cover two days, one change in each, and the price in effect before them.
    """
    now = world.clock.now()
    market = Market(3, now - timedelta(days=30))
    world.services = replace(world.services, prices=market)
    world.app.state.services = world.services

    body = world.http.get("/v1/prices/history?accelerator=H100:8&since=3d").json()

    assert len(body["series"]) == 3
    assert body["left_out"] == 0
    since = datetime.fromisoformat(body["since"])
    assert since == now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2)
    for series in body["series"]:
        moments = [datetime.fromisoformat(change["at"]) for change in series["changes"]]
        prices = [change["micros_per_hour"] for change in series["changes"]]
        assert moments[0] == since
        assert moments == sorted(moments)
        assert prices[-1] == series["now"]["spot_micros_per_hour"]
        assert series["lowest_micros_per_hour"] == min(prices)
        assert series["highest_micros_per_hour"] == max(prices)
        spans = [(b - a).total_seconds() for a, b in pairwise([*moments, now])]
        paid = sum(price * span for price, span in zip(prices, spans, strict=True))
        assert series["mean_micros_per_hour"] == pytest.approx(paid / sum(spans), abs=1)
    some = world.http.get("/v1/prices/history?accelerator=H100:8&limit=1").json()
    assert (len(some["series"]), some["left_out"]) == (1, 2)


def test_price_history_covers_the_thirty_days_before_a_day(world: SimulatedService) -> None:
    until = (world.clock.now() - timedelta(days=40)).date()

    body = world.http.get(f"/v1/prices/history?accelerator=H100:8&until={until}").json()

    since, end = (datetime.fromisoformat(body[name]) for name in ("since", "until"))
    assert end.date() == until + timedelta(days=1)
    assert end - since == timedelta(days=30)


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("since=2999-01-01", "since: 2999-01-01 is in the future"),
        ("since=2999-01-01&until=2999-02-01", "since: 2999-01-01 is in the future"),
        ("until=9999-12-31", "until: '9999-12-31' is not a day"),
        ("until=0001-01-01", "until: '0001-01-01' is not a day"),
    ],
)
def test_price_history_of_future_days_is_refused(
    world: SimulatedService, query: str, detail: str
) -> None:
    answer = world.http.get(f"/v1/prices/history?accelerator=A100:8&{query}")

    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(detail)


def test_slow_price_sources_are_left_out_of_the_history(
    world: SimulatedService,
) -> None:
    """Each source may take half a minute. Fifty of them would block the caller and a thread."""

    class Slow(Market):
        def history(
            self, wanted: PriceQuery, since: datetime, until: datetime
        ) -> Sequence[PricePoint]:
            world.clock.advance(6)
            return super().history(wanted, since, until)

    market = Slow(3, world.clock.now() - timedelta(days=30))
    world.services = replace(world.services, prices=market)
    world.app.state.services = world.services

    body = world.http.get("/v1/prices/history?accelerator=H100:8").json()

    assert (len(body["series"]), body["left_out"]) == (2, 1)


def test_prices_without_history_show_only_the_current_one(world: SimulatedService) -> None:
    body = world.http.get("/v1/prices/history?accelerator=A100:8&cloud=gcp").json()

    assert body["series"]
    for series in body["series"]:
        assert series["changes"] == []
        assert series["mean_micros_per_hour"] is None
        assert series["now"]["spot_micros_per_hour"] > 0


@pytest.mark.parametrize("query", ["", "accelerator=A100-40GB:8", "accelerator=A100:8&since=x"])
def test_price_history_with_invalid_query_is_refused(world: SimulatedService, query: str) -> None:
    assert world.http.get(f"/v1/prices/history?{query}").status_code in {400, 422}


def test_command_line_prints_a_price_history(
    world: SimulatedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    market = Market(3, world.clock.now() - timedelta(days=30))
    world.services = replace(world.services, prices=market)
    world.app.state.services = world.services
    with served(world) as address:
        monkeypatch.setenv("HOLDFAST_URL", address)

        table = CliRunner().invoke(app, ["prices", "-a", "A10G:4", "--since", "30d"]).output
        refused = CliRunner().invoke(app, ["prices", "--since", "30d"]).exception
        both = CliRunner().invoke(app, ["prices", "-a", "T4", "--since", "30d", "--refused"])

    assert re.search(r"aws/us-east-2/us-east-2b +g5.12xlarge( +\$[0-9.]+){5} +[0-9]+", table)
    assert "--since needs an accelerator" in str(refused)
    assert "--since and --refused exclude each other" in str(both.exception)
