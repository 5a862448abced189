"""The prices and preemptions pages of a demonstration show the values of the API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from fastapi.testclient import TestClient
from holdfast.api.app import create_app
from holdfast.clock import SystemClock
from holdfast.demo import history
from holdfast.demo.history.server import open_at
from holdfast.settings import Settings, SimulatedMarketSettings
from playwright.sync_api import Page, expect
from support.aged_market import ZONE, with_old_price
from support.simulated_service import SimulatedService, at_a_port, client
from web.axe import violations
from web.expected_numbers import dollars
from web.network_proxy import NetworkProxy

Theme = Literal["light", "dark"]
ROOM = "document.documentElement.clientWidth - document.documentElement.scrollWidth"
in_both_themes = pytest.mark.parametrize(
    "theme", ["light", pytest.param("dark", marks=pytest.mark.full)]
)


@dataclass
class Demo:
    """A demonstration whose time is stopped, since no controller runs."""

    url: str
    http: TestClient
    proxy: NetworkProxy

    def get(self, path: str, **words: str) -> Any:
        return self.http.get(path, params=words).json()


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with history.home(Settings()) as settings:
        # In another thread, since the browser's event loop runs in that of the test.
        with ThreadPoolExecutor(1) as executor:
            made = executor.submit(
                open_at, SystemClock(), 7, settings, SimulatedMarketSettings(), "http://127.0.0.1:1"
            )
        composed = made.result()
        app = create_app(composed.services)
        proxy = NetworkProxy(app)
        with at_a_port(proxy) as url, client(app) as http:
            yield Demo(url, http, proxy)
            composed.services.stopping.set()
        composed.services.engine.dispose()


def tile(page: Page, label: str) -> str:
    """The figure below a label."""
    found = page.locator(".tile", has=page.get_by_text(label, exact=True))
    return found.locator(".value").inner_text()


def test_totals_match_the_api(demo: Demo, page: Page) -> None:
    page.goto(f"{demo.url}/preemptions")
    expect(page.get_by_role("region", name="Totals")).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)

    total = demo.get("/v1/preemptions", since="30d")["total"]

    assert tile(page, "Preemptions") == f"{total['taken']}"
    assert tile(page, "With notice") == f"{round(100 * total['noticed'] / total['taken'])} %"
    assert (
        tile(page, "Checkpointed before preemption")
        == f"{round(100 * total['notice_used'] / total['taken'])} %"
    )
    assert tile(page, "Lost work") == f"~{dollars(total['lost_micros'])}"
    between = float(tile(page, "Mean time between preemptions").removesuffix(" h"))
    assert between == pytest.approx(total["node_hours_between"], rel=1e-3)


@pytest.mark.full
def test_every_grid_cell_has_its_count_and_interval(demo: Demo, page: Page) -> None:
    page.goto(f"{demo.url}/preemptions?hours=6")
    grid = page.get_by_role("img", name=re.compile("Preemptions per 100 node-hours in 5 zones"))
    expect(grid).to_be_visible()

    fields = demo.get("/v1/preemptions", by="zone-hour", hours="6", since="30d")["preemptions"]

    for field in fields:
        words = f"{field['zone']} {field['hour']:02d}:00 UTC: {field['taken']} preemption"
        result = grid.locator("title", has_text=words)
        expect(result).to_have_count(1)
        text = result.text_content() or ""
        assert ("90 % CI" in text) == (field["per_100_node_hours"] is not None)
    assert any(field["per_100_node_hours"] for field in fields)
    page.get_by_text("Show as table").first.click()
    rows = page.get_by_role("region", name="Preemptions by zone and hour").get_by_role("row")
    expect(rows).to_have_count(len(fields) + 1)


@pytest.mark.full
def test_old_figures_are_marked_until_new_ones_load(demo: Demo, page: Page) -> None:
    page.goto(f"{demo.url}/preemptions")
    panel = page.get_by_role("region", name="Rate by zone and hour")
    hours = panel.get_by_role("img", name=re.compile("^Preemptions per")).get_by_text(
        re.compile("^\\d\\d:00$")
    )
    expect(hours.filter(has_text="21:00")).to_be_visible()

    with demo.proxy.holding("by=zone-hour&hours=1$"):
        panel.get_by_role("combobox", name="Hours").select_option("1")

        expect(panel.get_by_role("status")).to_have_text("Previous selection; loading…")
        expect(panel.get_by_role("status")).to_be_visible()
        expect(hours.filter(has_text="20:00")).to_have_count(0)

    expect(panel.get_by_role("status")).to_have_count(0)
    expect(hours.filter(has_text="20:00")).to_be_visible()


@pytest.mark.full
def test_zone_in_the_url_applies_to_all_panels(demo: Demo, page: Page) -> None:
    zone = "aws/us-east-1/us-east-1a"
    page.goto(f"{demo.url}/preemptions")
    page.get_by_role("combobox", name="Zone").select_option(zone)

    expect(page).to_have_url(re.compile("zone=aws"))
    rows = page.get_by_role("region", name="Preemptions by zone").get_by_role("row")
    expect(rows).to_have_count(2)
    total = demo.get("/v1/preemptions", since="30d", zone=zone)["total"]
    assert tile(page, "Preemptions") == f"{total['taken']}"
    notices = demo.get("/v1/preemptions/notices", since="30d", zone=zone)
    bars = page.get_by_role("img", name=re.compile("Preemptions by length of notice"))
    expect(bars).to_have_attribute(
        "aria-label", re.compile(f"{notices['without']} preemptions? without notice")
    )
    page.reload()
    expect(page.get_by_role("combobox", name="Zone")).to_have_value(zone)


@pytest.mark.full
def test_survival_curve_shows_the_measured_rate(demo: Demo, page: Page) -> None:
    answer = demo.get("/v1/preemptions", since="30d")

    page.goto(f"{demo.url}/preemptions")

    panel = page.get_by_role("region", name="Survival")
    mean = answer["survival_mean_hours"]
    curve = panel.get_by_role("img", name=re.compile("^Survival of attempts"))
    name = curve.get_attribute("aria-label") or ""
    found = re.search(r"mean of ([\d.]+) hours", name)
    assert found
    assert float(found[1]) == pytest.approx(mean, rel=1e-3)
    expect(panel.get_by_role("listitem").filter(has_text="Exponential")).to_be_visible()


@pytest.mark.full
def test_worst_jobs_match_the_api_and_link_to_their_pages(demo: Demo, page: Page) -> None:
    page.goto(f"{demo.url}/preemptions")
    answer = demo.get("/v1/preemptions/jobs", since="30d")["jobs"]

    rows = page.get_by_role("region", name="Jobs by cost of lost work").get_by_role("row")

    expect(rows).to_have_count(len(answer) + 1)
    for number, job in enumerate(answer, start=1):
        expect(rows.nth(number)).to_contain_text(job["name"])
        expect(rows.nth(number)).to_contain_text(f"~{dollars(job['lost_micros'])}")
    page.get_by_role("link", name=answer[0]["name"], exact=True).click()
    expect(page.get_by_role("heading", level=1, name=answer[0]["name"])).to_be_visible()


def test_history_counts_each_day_and_lists_single_preemptions(demo: Demo, page: Page) -> None:
    answer = demo.get("/v1/preemptions/history", since="30d", limit="500")
    page.goto(f"{demo.url}/preemptions")
    panel = page.get_by_role("region", name="History")

    chart = panel.get_by_role("img", name=re.compile(r"^\d+ preemptions in"))
    rows = panel.get_by_role("region", name="Preemptions").get_by_role("row")

    for day in answer["days"]:
        expect(chart.get_by_text(f"{day['day']}: {day['taken']} preemption")).to_have_count(1)
    newest = answer["preemptions"][0]
    expect(rows.nth(1)).to_contain_text(newest["name"])
    expect(rows.nth(1)).to_contain_text(newest["zone"])
    expect(panel.get_by_role("table")).to_have_attribute(
        "aria-rowcount", f"{len(answer['preemptions']) + 1}"
    )


@pytest.mark.full
def test_recovery_and_causes_are_shown_in_full(demo: Demo, page: Page) -> None:
    total = demo.get("/v1/preemptions", since="30d")["total"]
    page.goto(f"{demo.url}/preemptions")

    parts = page.get_by_role("region", name="Recovery").get_by_role("listitem")
    meters = page.get_by_role("region", name="Causes").get_by_role("meter")

    expect(parts).to_have_count(5)
    expect(meters).to_have_count(len(total["causes"]))
    values = sorted(int(meter.get_attribute("value") or 0) for meter in meters.all())
    assert values == sorted(total["causes"].values())


@pytest.mark.full
def test_price_history_matches_the_api(demo: Demo, page: Page) -> None:
    page.goto(f"{demo.url}/prices")
    page.get_by_role("combobox", name="Accelerators").select_option("H100:8")
    expect(page).to_have_url(re.compile("node=H100"))
    past = demo.get("/v1/prices/history", accelerator="H100:8", since="30d")

    rows = page.get_by_role("region", name="Spot prices in this period").get_by_role("row")

    expect(rows).to_have_count(len(past["series"]) + 1)
    for number, series in enumerate(past["series"], start=1):
        for what in ("lowest", "mean", "highest"):
            expect(rows.nth(number)).to_contain_text(dollars(series[f"{what}_micros_per_hour"]))
        now = series["now"]
        expect(rows.nth(number)).to_contain_text(dollars(now["spot_micros_per_hour"]))
        expect(rows.nth(number)).to_contain_text(dollars(now["on_demand_micros_per_hour"]))
        expect(rows.nth(number)).to_contain_text(now["source"])
    chart = page.get_by_role("img", name=re.compile("Spot prices of 3 placements"))
    expect(chart.locator("path")).to_have_count(3)


@pytest.mark.full
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_empty_preemptions_page_shows_how_to_get_data(page: Page, url: str) -> None:
    page.goto(f"{url}/preemptions")

    expect(page.get_by_role("heading", name="No data")).to_be_visible()
    expect(page.get_by_text("holdfast preempt JOB")).to_be_visible()


@pytest.mark.full
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("sort", ["", "spot_usd", "-as_of"])
def test_old_price_is_below_all_others_and_marked(
    sort: str, world: SimulatedService, url: str, page: Page
) -> None:
    with_old_price(world)
    page.clock.set_fixed_time(world.clock.now())

    page.goto(f"{url}/prices?node=H100:8&now.sort={sort}")

    for table in ("Current node prices", "Spot prices in this period"):
        rows = page.get_by_role("region", name=table).get_by_role("row")
        expect(rows.last).to_contain_text(ZONE)
        expect(rows.last).to_contain_text("⚠ old")
        expect(rows.filter(has_text="⚠ old")).to_have_count(1)


@pytest.mark.full
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_cost_estimate_ignores_outdated_prices(
    world: SimulatedService, url: str, page: Page
) -> None:
    with_old_price(world)
    page.clock.set_fixed_time(world.clock.now())
    page.goto(f"{url}/submit")
    page.get_by_label("Where", exact=True).fill("")

    page.get_by_label("Accelerators per node").fill("H100:8")

    rows = page.get_by_role("region", name="Cheapest placements of H100:8").get_by_role("row")
    expect(rows).to_have_count(1 + 3)
    expect(rows.filter(has_text=ZONE)).to_have_count(0)
    assert tile(page, "On demand") == f"~{dollars(10 * 55_040_000)}"


@pytest.mark.full
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_missing_price_history_is_stated(page: Page, url: str) -> None:
    page.goto(f"{url}/prices?node=A100:8")

    expect(page.get_by_text("No price history.")).to_be_visible()
    rows = page.get_by_role("region", name="Current node prices").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("snapshot: SkyPilot catalog")


@pytest.mark.full
@in_both_themes
def test_both_pages_have_no_accessibility_violations(theme: Theme, demo: Demo, page: Page) -> None:
    page.emulate_media(color_scheme=theme)
    found = []

    for path in ("/preemptions", "/preemptions?zone=nowhere", "/prices", "/prices?region=x"):
        page.goto(f"{demo.url}{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading")).to_have_count(0)
        found += [f"{path}: {rule}" for rule in violations(page)]

    assert not found, "\n".join(found)


@pytest.mark.full
@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_no_prices_page_is_wider_than_its_window(width: int, demo: Demo, page: Page) -> None:
    page.set_viewport_size({"width": width, "height": 800})

    for path in ("/", "/preemptions", "/prices"):
        page.goto(f"{demo.url}{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading")).to_have_count(0)

        assert page.evaluate(ROOM) >= 0, path


@pytest.mark.full
def test_manifest_of_a_job_matches_the_api(demo: Demo, page: Page) -> None:
    job = demo.get("/v1/jobs", limit="200", status="succeeded")["jobs"][0]
    answer = demo.get(f"/v1/jobs/{job['id']}/manifest")
    page.goto(f"{demo.url}/jobs/{job['id']}")
    page.get_by_role("tab", name="Manifest").click()

    shown = page.get_by_role("region", name="Manifest").inner_text()

    assert answer.pop("lock") == []
    assert json.loads(shown) == answer
    assert answer["world_size"] == answer["nodes"] * answer["gpus_per_node"] > 0


@pytest.mark.full
def test_legend_counts_as_many_preemptions_as_the_header(demo: Demo, page: Page) -> None:
    jobs = demo.get("/v1/jobs", limit="200", status="succeeded")["jobs"]
    job = max(jobs, key=lambda one: one["preemptions"])
    attempts = demo.get(f"/v1/jobs/{job['id']}/attempts")
    lost = [one for one in attempts if one["cause"] in {"preempted", "node_failed"}]
    drawn = sum(one["last_step"] is not None for one in lost)
    assert 0 < drawn < len(lost) == job["preemptions"]

    page.goto(f"{demo.url}/jobs/{job['id']}")

    words = f"{len(lost)} preemptions"
    expect(page.get_by_role("group", name="State")).to_contain_text(words)
    key = page.get_by_role("region", name="Training").get_by_role("listitem")
    expect(key.filter(has_text="preemptions")).to_have_text(f"{drawn} of {words}")


@pytest.mark.full
def test_demo_is_labelled_as_simulated(demo: Demo, page: Page) -> None:
    page.goto(demo.url)

    result = page.get_by_role("complementary", name="Demonstration")
    expect(result).to_contain_text("simulated (seed 7); nothing is billed")


@pytest.mark.full
@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_values_of_many_attempts_fit_below_their_curve(width: int, demo: Demo, page: Page) -> None:
    """Regression: the texts about three rolled-back attempts overlapped the next chart."""
    failed = demo.get("/v1/jobs", status="failed", limit="200")["jobs"]
    worst = max(failed, key=lambda job: job["attempt"])
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{demo.url}/jobs/{worst['id']}")
    expect(page.get_by_role("img", name=re.compile("^steps per second over"))).to_be_visible()

    assert page.evaluate(ROOM) >= 0
    wider = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).length"
    assert page.get_by_role("figure").evaluate_all(wider) == 0
