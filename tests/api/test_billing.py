"""Bills and totals in the API and on the command line, as JSON, tables and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from decimal import Decimal

import pytest
from holdfast.api.routes.billing import _loss
from holdfast.cli.app import app
from holdfast.domain.billing.bill import LatestPoint, compute_bill
from support.events import at, launched, lost, ready, restarted, saved, submitted, training
from support.simulated_service import JOB_FILE, SimulatedService, served
from support.snapshots import created_once
from typer.testing import CliRunner


@pytest.fixture
def two_jobs(world: SimulatedService) -> tuple[str, str]:
    """A job that has ended, and one with running nodes."""
    return created_once(world, run_two_jobs)


def run_two_jobs(world: SimulatedService) -> tuple[str, str]:
    ended = world.submit()["id"]
    world.until(ended, "succeeded")
    live = world.submit(JOB_FILE.replace("name: tiny", "name: '=SUM(A1)'").replace("nlp", "'@a'"))
    world.until(live["id"], "training")
    return ended, live["id"]


@pytest.fixture
def url(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the simulated service, set for the command line."""
    with served(world) as address:
        monkeypatch.setenv("HOLDFAST_URL", address)
        yield address


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_totals_equal_the_sum_of_bills(world: SimulatedService, two_jobs: tuple[str, str]) -> None:
    bills = [world.http.get(f"/v1/jobs/{job}/bill").json() for job in two_jobs]

    for by in ("job", "attempt", "user", "project", "tag:team", "zone", "day"):
        body = world.http.get("/v1/costs", params={"by": by, "since": "30d"}).json()
        for word in ("paid_micros", "on_demand_micros", "saved_micros", "wasted_micros"):
            assert body["total"][word] == sum(bill[word] for bill in bills), (by, word)
            assert sum(cost[word] for cost in body["costs"]) == body["total"][word]
        assert (body["by"], body["pending"], body["total"]["jobs"]) == (by, 0, 2)


def test_daily_costs_split_by_group_add_up(
    world: SimulatedService, two_jobs: tuple[str, str]
) -> None:
    days = world.http.get("/v1/costs", params={"by": "day"}).json()
    teams = world.http.get("/v1/costs", params={"by": "tag:team"}).json()

    for each in ("user", "project", "tag:team", "zone"):
        body = world.http.get("/v1/costs", params={"by": "day", "each": each}).json()
        assert body["each"] == each
        assert body["total"] == days["total"]
        for day in days["costs"]:
            parts = [cost for cost in body["costs"] if cost["key"] == day["key"]]
            for word in ("paid_micros", "on_demand_micros", "wasted_micros"):
                assert sum(part[word] for part in parts) == day[word], (each, word)
    body = world.http.get("/v1/costs", params={"by": "day", "each": "tag:team"}).json()
    assert {cost["part"]: cost["paid_micros"] for cost in body["costs"]} == {
        cost["key"]: cost["paid_micros"] for cost in teams["costs"]
    }
    sheet = world.http.get("/v1/costs", params={"by": "day", "each": "zone", "format": "csv"}).text
    assert [*read(sheet)[0]][:2] == ["day", "zone"]


def test_a_bill_as_csv_adds_up_to_the_bill(
    world: SimulatedService, two_jobs: tuple[str, str]
) -> None:
    for job in two_jobs:
        bill = world.http.get(f"/v1/jobs/{job}/bill").json()

        answer = world.http.get(f"/v1/jobs/{job}/bill", headers={"Accept": "text/csv"})

        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert f"bill-{job}.csv" in answer.headers["content-disposition"]
        rows = read(answer.text)
        assert sum(Decimal(row["paid_usd"]) for row in rows) * 10**6 == bill["paid_micros"]
        assert sum(Decimal(row["useful_s"]) for row in rows) * 1000 == bill["ms"]["useful"]
        assert sum(Decimal(row["waiting_s"]) for row in rows) * 1000 == bill["waiting_ms"]
        assert {row["simulated"] for row in rows if row["attempt"]} == {"true"}


def test_costs_as_csv_name_their_units_and_hold_no_formulas(
    world: SimulatedService, two_jobs: tuple[str, str]
) -> None:
    params = {"by": "tag:team", "format": "csv"}

    rows = read(world.http.get("/v1/costs", params=params).text)
    jobs = read(world.http.get("/v1/costs", params={"format": "csv"}).text)

    assert {row["team"] for row in rows} == {"nlp", "'@a"}
    assert {row["label"] for row in jobs} == {"tiny", "'=SUM(A1)"}
    total = world.http.get("/v1/costs").json()["total"]
    assert sum(Decimal(row["paid_usd"]) for row in jobs) * 10**6 == total["paid_micros"]
    flags = {"simulated", "estimate", "unpriced"}
    names = [name for name in [*rows[0]][3:] if name not in flags]
    assert all(name.endswith(("_s", "_usd")) for name in names)
    assert flags < {*rows[0]}


def test_limit_omits_the_cheapest_and_counts_them(
    world: SimulatedService, two_jobs: tuple[str, str]
) -> None:
    body = world.http.get("/v1/costs", params={"limit": 1}).json()

    assert (len(body["costs"]), body["left_out"], body["total"]["jobs"]) == (1, 1, 2)
    assert body["costs"][0]["paid_micros"] * 2 >= body["total"]["paid_micros"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"by": "team"},
            "by: 'team' is unknown; write one of job, attempt, user, project, tag:NAME, zone, day",
        ),
        ({"by": "tag"}, "tag:NAME"),
        ({"by": "zone:a"}, "is unknown; write one of"),
        (
            {"by": "day", "each": "job"},
            "each: 'job' is unknown; write one of user, project, tag:NAME, zone",
        ),
        ({"by": "user", "each": "zone"}, "each: totals by user cannot be divided further"),
        ({"since": "yesterday"}, "since: 'yesterday' is not a day; write one in UTC"),
        ({"since": "999999d"}, "is not a day"),
        ({"since": "2026-03-02", "until": "2026-03-01"}, "swap the two"),
    ],
)
def test_invalid_cost_query_is_refused_with_a_reason(
    world: SimulatedService, params: dict[str, str], message: str
) -> None:
    answer = world.http.get("/v1/costs", params=params)

    assert answer.status_code == 400
    assert message in answer.json()["detail"]


def test_command_line_prints_totals(url: str, two_jobs: tuple[str, str]) -> None:
    run = CliRunner().invoke

    table = run(app, ["costs", "--by", "zone", "--since", "30d"]).output
    sheet = run(app, ["costs", "--csv"]).output
    bill = run(app, ["bill", two_jobs[0], "--csv"]).output
    both = run(app, ["costs", "--csv", "--json"]).exception

    assert "local-" in table
    assert "wasted: setup ~$" in table
    assert {row["job"] for row in read(sheet)} == {*two_jobs}
    assert {row["job"] for row in read(bill)} == {two_jobs[0]}
    assert "use one of them" in str(both)


def test_command_line_splits_days_by_a_column(url: str, two_jobs: tuple[str, str]) -> None:
    zones = CliRunner().invoke(app, ["costs", "--by", "day", "--each", "zone"]).output
    users = CliRunner().invoke(app, ["costs", "--by", "day", "--each", "user"]).output

    assert re.match(r"DAY +ZONE +JOBS ", zones)
    assert re.search(r"^\d{4}-\d\d-\d\d +local-\w +\d ", zones, re.MULTILINE)
    assert re.match(r"DAY +USER +JOBS ", users)
    assert re.search(r"^\d{4}-\d\d-\d\d +- +2 ", users, re.MULTILINE)


def test_loss_of_nodes_excludes_that_of_an_earlier_restart() -> None:
    preempted = lost(90)
    events = [
        *(submitted(), launched(), ready(10), training(35), saved(60, step=50)),
        *(restarted(70, step=60), training(73, step=50), saved(80, step=57), preempted),
    ]

    [item] = compute_bill(events, {1: LatestPoint(step=65, at=at(89))}, at(1000)).attempts
    loss = _loss(preempted, item)

    assert item.lost_steps == 10 + 8
    assert (loss.lost_steps, loss.lost_ms, loss.lost_micros) == (8, 10_000, 10_000)
