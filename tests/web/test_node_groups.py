"""The pages of a job whose nodes are in several groups: its lanes, tables and prices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import yaml
from holdfast.domain.jobfile.spec import Engine
from playwright.sync_api import Locator, Page, expect
from support.events import at, finished
from support.group_events import group_events, group_submission
from support.simulated_service import SimulatedService
from web.axe import violations
from web.expected_numbers import dollars, figure

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

in_both_themes = pytest.mark.parametrize(
    "theme", ["light", pytest.param("dark", marks=pytest.mark.full)]
)
Theme = Literal["light", "dark"]
HEAD_RESOURCES = {"infra": "aws/us-east-1", "use_spot": False}
FILE: str = yaml.safe_dump(
    {
        "name": "llama",
        "run": "train",
        "resources": {"accelerators": "A100:8"},
        "holdfast": {
            "groups": [
                {"name": "head", "num_nodes": 1, "resources": HEAD_RESOURCES},
                {"name": "first", "num_nodes": 1, "resources": {"infra": "aws/us-east-1"}},
                {"name": "second", "num_nodes": 2, "resources": {"infra": "aws/us-east-2"}},
            ],
            "checkpoint": {"store": "s3://bucket/prefix"},
            "limits": {"max_cost_usd": 500},
        },
    },
    sort_keys=False,
)


@pytest.fixture
def job(world: SimulatedService) -> str:
    """A running job of three groups in two regions, one of them preempted twice."""
    world.clock.advance((at(5000) - world.clock.now()).total_seconds())
    submitted = world.services.journal.submit("job-1", group_submission())
    world.services.journal.append(submitted, group_events())
    return submitted.id


@pytest.fixture
def sky(world: SimulatedService) -> SimulatedService:
    """A service with a launcher for groups."""
    launchers = {**world.services.launchers, Engine.SKYPILOT: world.cloud}
    reach = "https://holdfast.example.com"
    world.app.state.services = replace(world.services, launchers=launchers, worker_url=reach)
    return world


def bill_of(world: SimulatedService, job: str) -> dict[str, Any]:
    bill: dict[str, Any] = world.http.get(f"/v1/jobs/{job}/bill").json()
    return bill


def rows(page: Page, caption: str) -> Locator:
    """The rows of a table of the attempts, without its heading."""
    attempts = page.get_by_role("region", name="Attempts")
    return attempts.get_by_role("table", name=caption, exact=True).locator("tbody tr")


def lane_words(page: Page) -> list[str]:
    """The words of all bars and marks of the chart."""
    chart = page.get_by_role("img", name="Timeline of 2 attempts and 3 node groups")
    expect(chart).to_be_visible()
    return chart.locator("rect title, .mark title").all_text_contents()


@in_both_themes
def test_lanes_and_tables_of_groups_match_the_api(
    theme: Theme, world: SimulatedService, url: str, job: str, page: Page
) -> None:
    bill = bill_of(world, job)
    page.emulate_media(color_scheme=theme)

    page.goto(f"{url}/jobs/{job}")

    words = lane_words(page)
    for group in bill["groups"]:
        states = [span["state"] for span in group["spans"]]
        mine = [text for text in words if text.startswith(f"{group['name']}: ")]
        assert [" missing for " in text for text in mine] == [s == "missing" for s in states]
        returns = [text for text in words if text.startswith(f"return of group {group['name']}")]
        assert len(returns) == states.count("missing")
    sums = rows(page, "Node groups")
    expect(sums).to_have_count(3)
    for row, group in enumerate(bill["groups"]):
        expect(sums.nth(row)).to_contain_text(group["name"])
        expect(sums.nth(row)).to_contain_text(dollars(group["paid_micros"]))
    hourly = sum(group["spans"][-1]["micros_per_hour"] for group in bill["groups"])
    expect(page.get_by_text(f"cost {dollars(hourly)} an hour now")).to_be_visible()
    stays = [(group, span) for group in bill["groups"] for span in group["spans"]]
    listed = rows(page, "Placements of node groups")
    expect(listed).to_have_count(len(stays))
    for row, (group, span) in enumerate(stays):
        expect(listed.nth(row)).to_contain_text(group["name"])
        if span["zone"]:
            expect(listed.nth(row)).to_contain_text(span["zone"].split("/")[-1])
            expect(listed.nth(row)).to_contain_text(dollars(span["micros_per_hour"]))
            expect(listed.nth(row)).to_contain_text(dollars(span["paid_micros"]))
    assert violations(page) == []


def test_losses_and_returns_of_groups_are_marked(url: str, job: str, page: Page) -> None:
    page.goto(f"{url}/jobs/{job}")

    words = lane_words(page)

    for text, times in (
        ("preemption of group second", 2),  # In the lanes of the attempt and of the group.
        ("preemption of group second: nodes lost without notice", 2),
        ("preemption of group head: nodes lost without notice", 1),
        ("return of group second in aws/us-east-2/us-east-2c", 1),
        ("return of group head in aws/us-east-1/us-east-1a", 1),
    ):
        assert words.count(text) == times, text
    legend = page.get_by_role("list", name="Legend of node groups")
    for name in ("Spot nodes", "On-demand nodes", "Provisioning", "Missing", "Return of a group"):
        expect(legend.get_by_text(name, exact=True)).to_be_visible()


@pytest.mark.full
def test_zoom_shows_a_part_of_all_lanes(url: str, job: str, page: Page) -> None:
    page.goto(f"{url}/jobs/{job}")
    expect(page.get_by_role("img", name="Timeline of")).to_be_visible()

    page.get_by_role("button", name="Zoom to attempt 2").focus()
    page.keyboard.press("Enter")

    name = "Timeline of 2 attempts and 3 node groups from 2026-03-01"
    expect(page.get_by_role("img", name=name)).to_be_visible()


@pytest.mark.full
def test_placements_are_sorted_by_keyboard(
    world: SimulatedService, url: str, job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{job}")
    table = page.get_by_role("table", name="Placements of node groups")

    table.get_by_role("columnheader", name="Paid").get_by_role("button").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")

    most = max(span["paid_micros"] for g in bill_of(world, job)["groups"] for span in g["spans"])
    expect(rows(page, "Placements of node groups").first).to_contain_text(dollars(most))


def test_history_and_events_name_the_lost_group(
    world: SimulatedService, url: str, job: str, page: Page
) -> None:
    page.goto(f"{url}/preemptions")
    table = page.get_by_role("table", name="Preemptions", exact=True)
    expect(table.get_by_role("columnheader", name="Group")).to_be_visible()
    expect(table.locator("tbody tr").nth(0)).to_contain_text("head")
    for row in (1, 2):
        expect(table.locator("tbody tr").nth(row)).to_contain_text("second")
    assert violations(page) == []

    page.goto(f"{url}/jobs/{job}?tab=events&events.find=NodeLost")

    events = page.get_by_role("table", name="Events").locator("tbody tr")
    expect(events).to_have_count(4)
    expect(events.first).to_contain_text("group=second")
    attempts = rows(page, "Phases and cost of each attempt")
    expect(attempts.first).to_contain_text("head: nodes lost without notice")


@pytest.mark.full
def test_lanes_of_an_ended_job_end_with_it(
    world: SimulatedService, url: str, job: str, page: Page
) -> None:
    journal = world.services.journal
    journal.append(journal.read(job), [finished(4800)])

    page.goto(f"{url}/jobs/{job}")

    expect(rows(page, "Node groups").first).to_contain_text("no nodes")
    expect(rows(page, "Placements of node groups").last).to_contain_text("job ended")
    expect(page.get_by_text("an hour now")).to_have_count(0)


@pytest.mark.full
def test_job_without_groups_has_no_lanes_of_groups(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")

    name = "Timeline of 3 attempts; the table below has the same in words"
    expect(page.get_by_role("img", name=name)).to_be_visible()
    expect(page.get_by_text("Node groups")).to_have_count(0)
    page.goto(f"{url}/preemptions")
    table = page.get_by_role("table", name="Preemptions", exact=True)
    expect(table.get_by_role("columnheader", name="Node", exact=True)).to_be_visible()
    expect(table.get_by_role("columnheader", name="Group")).to_have_count(0)


@pytest.mark.full
@pytest.mark.parametrize("width", [390, 1440])
def test_pages_of_groups_fit_the_window(width: int, sky: SimulatedService, url: str, job: str, page: Page) -> None:  # fmt: skip
    page.set_viewport_size({"width": width, "height": 844})

    for path, words in ((f"/jobs/{job}", "Placements of node groups"), ("/submit", "Job file")):
        page.goto(f"{url}{path}")
        expect(page.get_by_text(words).first).to_be_attached()
        if path == "/submit":
            page.get_by_role("textbox", name="Job file").fill(FILE)
            expect(page.get_by_role("table", name="Price of each node group")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


@in_both_themes
def test_prices_of_groups_match_the_estimate(
    theme: Theme, sky: SimulatedService, url: str, page: Page
) -> None:
    body = {"task": FILE, "prices": True}
    estimate = sky.http.post("/v1/render", json=body).json()["estimate"]
    assert estimate["micros_per_hour"] == sum(g["micros_per_hour"] for g in estimate["groups"])
    page.emulate_media(color_scheme=theme)
    page.goto(f"{url}/submit")

    page.get_by_role("textbox", name="Job file").fill(FILE)

    prices = page.get_by_role("table", name="Price of each node group").locator("tbody tr")
    expect(prices).to_have_count(3)
    for row, group in enumerate(estimate["groups"]):
        market = "spot" if group["is_spot"] else "on demand"
        for text in (group["name"], group["node"], group["place"], market):
            expect(prices.nth(row)).to_contain_text(text)
        expect(prices.nth(row)).to_contain_text(dollars(group["micros_per_hour"]))
    hourly = estimate["micros_per_hour"]
    expect(figure(page, "Price per hour")).to_have_text(f"~{dollars(hourly)}")
    page.get_by_label("Hours of useful work").fill("3")
    expect(figure(page, "Expected")).to_have_text(f"~{dollars(3 * hourly)}")
    expect(page.get_by_text("maximum $500.00")).to_be_visible()
    assert violations(page) == []


@pytest.mark.full
def test_unknown_price_of_a_group_is_not_summed(
    sky: SimulatedService, url: str, page: Page
) -> None:
    page.goto(f"{url}/submit")

    page.get_by_role("textbox", name="Job file").fill(FILE.replace("aws/us-east-2", "aws/mars-1"))

    region = page.get_by_role("region", name="Price", exact=True)
    expect(region.get_by_text("price unknown")).to_be_attached()
    expect(region.get_by_text("the price of a group is unknown", exact=True)).to_be_attached()


@pytest.mark.full
def test_invalid_groups_have_no_prices(sky: SimulatedService, url: str, page: Page) -> None:
    page.goto(f"{url}/submit")
    file = page.get_by_role("textbox", name="Job file")
    file.fill(FILE)
    expect(page.get_by_role("table", name="Price of each node group")).to_be_visible()

    file.fill(FILE.replace("name: second", "name: head"))

    expect(page.get_by_text("follow when the file is valid")).to_be_visible()
    file.fill(FILE.replace("groups:", "tags: {}\n  # groups:").partition("- name")[0])
    expect(page.get_by_label("Hours of useful work")).to_be_visible()
