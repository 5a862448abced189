"""The plan of a job: its tab, the choices above the lanes, moves, and the forecast of the submit page."""

from __future__ import annotations

import re
from itertools import cycle
from typing import Any, Literal

import pytest
from holdfast.domain.events import CapacityType, PlanReason
from playwright.sync_api import Locator, Page, expect
from support.events import at, finished
from support.plan_events import NOW_S, moved_away, plan_events, plan_submission, planned
from support.simulated_service import JOB_FILE, SimulatedService
from web.axe import violations
from web.expected_numbers import dollars

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

in_both_themes = pytest.mark.parametrize(
    "theme", ["light", pytest.param("dark", marks=pytest.mark.full)]
)
Theme = Literal["light", "dark"]
FILE = """\
name: due
resources: {infra: local}
run: holdfast-worker run train.py
holdfast:
  checkpoint: {store: "s3://bucket/prefix"}
  limits: {deadline: 48h, max_cost_usd: 500}
  plan: {work: 8h} # measured
"""


@pytest.fixture
def job(world: SimulatedService, page: Page) -> str:
    """A job that waited for spot nodes, lost them, and moved to on-demand nodes."""
    world.clock.advance((at(NOW_S) - world.clock.now()).total_seconds())
    page.clock.set_fixed_time(at(NOW_S))
    submitted = world.services.journal.submit("job-1", plan_submission())
    world.services.journal.append(submitted, plan_events())
    return submitted.id


def plan_of(world: SimulatedService, job: str) -> dict[str, Any]:
    answer = world.http.get(f"/v1/jobs/{job}/plan")
    assert answer.status_code == 200, answer.text
    plan: dict[str, Any] = answer.json()
    return plan


def rows(page: Page, caption: str) -> Locator:
    """The rows of a table, without its heading."""
    return page.get_by_role("table", name=caption, exact=True).locator("tbody tr")


def bands(chart: Locator) -> list[str]:
    """The words of the choices that a chart shows."""
    return chart.locator(".band title").all_text_contents()


@in_both_themes
def test_plan_tab_matches_the_api(
    theme: Theme, world: SimulatedService, url: str, job: str, page: Page
) -> None:
    plan = plan_of(world, job)
    page.emulate_media(color_scheme=theme)

    page.goto(f"{url}/jobs/{job}?tab=plan")

    tab = page.get_by_role("tabpanel", name="Plan")
    for sentence in (plan["sentence"], plan["next"]):
        expect(tab.get_by_text(sentence, exact=True).first).to_be_visible()
    choices = rows(page, "Choices")
    expect(choices).to_have_count(len(plan["choices"]))
    for row, choice in enumerate(plan["choices"]):
        expect(choices.nth(row)).to_contain_text(choice["sentence"])
    expect(choices.first).to_contain_text("On demand")
    expect(choices.last).to_contain_text("Waiting for spot")
    places = rows(page, "Places now")
    expect(places).to_have_count(len(plan["places_now"]))
    for row, place in enumerate(plan["places_now"]):
        expect(places.nth(row)).to_contain_text(place["name"])
        expect(places.nth(row)).to_contain_text(dollars(place["spot_micros_per_hour"]))
    cost = tab.get_by_role("img", name=re.compile("^Forecast of the cost"))
    first, newest = plan["first_forecast"]["cost_micros"], plan["forecast"]["cost_micros"]
    for words in (
        f"First forecast {dollars(first['p50'])}, {dollars(first['p10'])} to {dollars(first['p90'])}",
        f"Newest {dollars(newest['p50'])}, {dollars(newest['p10'])} to {dollars(newest['p90'])}",
        f"paid {dollars(plan['paid_micros'])}",
        f"budget {dollars(plan['budget_micros'])}",
    ):
        expect(cost).to_have_accessible_name(re.compile(re.escape(words)))
    assert violations(page) == []


def test_choices_are_bands_above_the_lanes(
    world: SimulatedService, url: str, job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{job}?tab=plan")

    chart = page.get_by_role("img", name=re.compile("^Saved work over time"))
    expect(chart).to_be_visible()
    lanes = page.get_by_role("img", name=re.compile("^Timeline of 2 attempts"))
    for drawn in (bands(chart), bands(lanes)):
        kinds = [words.partition(":")[0] for words in drawn]
        assert kinds == ["Waiting", "Spot", "Waiting", "On demand"]
    for line in (".saved-line", ".net-line", ".fan", ".fan-first", ".moment.deadline"):
        assert chart.locator(line).count() == 1, line
    legend = page.get_by_role("tabpanel").get_by_role("list").first
    for word in ("Waiting", "Spot", "On demand", "Saved work", "Safety net", "First forecast"):
        expect(legend.get_by_text(word, exact=True)).to_be_visible()


@pytest.mark.full
def test_new_choice_appears_without_a_reload(
    world: SimulatedService, url: str, job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{job}?tab=plan")
    expect(page.get_by_text("● live")).to_be_visible()
    expect(rows(page, "Choices")).to_have_count(2)

    world.clock.advance(60)
    world.services.journal.append(world.services.journal.read(job), moved_away(NOW_S + 5))

    expect(rows(page, "Choices")).to_have_count(3)
    expect(page.get_by_role("group", name="State")).to_contain_text("⇄ moving")
    attempts = rows(page, "Phases and cost of each attempt")
    expect(attempts.nth(1)).to_contain_text("moved to other nodes")
    expect(page.get_by_role("img", name=re.compile("^Timeline")).get_by_text("move:")).to_have_count(1)  # fmt: skip
    page.get_by_role("tab", name="Events").click()
    for kind in ("Planned", "MoveRequested", "Moved"):
        expect(page.get_by_role("cell", name=kind, exact=True).first).to_be_attached()
    assert violations(page) == []


@pytest.mark.full
def test_plan_of_an_ended_job_shows_its_end(
    world: SimulatedService, url: str, job: str, page: Page
) -> None:
    world.services.journal.append(world.services.journal.read(job), [finished(NOW_S)])
    plan = plan_of(world, job)

    page.goto(f"{url}/jobs/{job}?tab=plan")

    end = page.get_by_role("img", name=re.compile("^Forecast of the end"))
    expect(end).to_have_accessible_name(re.compile("ended Mar 1 19:00 UTC"))
    expect(rows(page, "Choices")).to_have_count(len(plan["choices"]))
    expect(page.locator(".plan-chart .fan")).to_have_count(0)
    assert violations(page) == []


@pytest.mark.full
def test_job_that_is_not_planned_yet_says_so(world: SimulatedService, url: str, page: Page) -> None:
    page.clock.set_fixed_time(at(0))
    world.services.journal.submit("job-1", plan_submission())
    plan = plan_of(world, "job-1")

    page.goto(f"{url}/jobs/job-1?tab=plan")

    tab = page.get_by_role("tabpanel", name="Plan")
    expect(tab.get_by_text(plan["sentence"], exact=True).first).to_be_visible()
    expect(tab).to_contain_text("No forecast yet")
    expect(rows(page, "Choices")).to_have_count(0)
    assert violations(page) == []


@pytest.mark.full
def test_all_choices_of_a_long_job_are_listed(
    world: SimulatedService, url: str, job: str, page: Page
) -> None:
    more = [
        planned(NOW_S + n, kind, PlanReason.LEAST_EXPECTED_COST)
        for n, kind in zip(range(1, 151), cycle((None, CapacityType.SPOT)), strict=False)
    ]
    world.services.journal.append(world.services.journal.read(job), more)

    page.goto(f"{url}/jobs/{job}?tab=plan")

    table = page.get_by_role("table", name="Choices", exact=True)
    expect(table).to_have_attribute("aria-rowcount", str(1 + 2 + len(more)))


def test_job_without_a_plan_has_no_plan_tab(world: SimulatedService, url: str, page: Page) -> None:
    job = world.submit(JOB_FILE)["id"]

    page.goto(f"{url}/jobs/{job}?tab=plan")

    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Plan")).to_have_count(0)


@in_both_themes
def test_submit_page_forecasts_a_planned_file(
    theme: Theme, world: SimulatedService, url: str, page: Page
) -> None:
    page.clock.set_fixed_time(world.clock.now())
    preview = world.http.post("/v1/plans", json={"task": FILE})
    assert preview.status_code == 200, preview.text
    page.emulate_media(color_scheme=theme)
    page.goto(f"{url}/submit")

    page.get_by_role("textbox", name="Job file").fill(FILE)

    forecast = page.get_by_role("region", name="Forecast", exact=True)
    table = rows(page, "Forecast of the plan and its alternatives")
    alternatives = preview.json()["alternatives"]
    names = {"ours": "Plan", "spot": "Spot only", "on_demand": "On demand only"}
    expect(table).to_have_count(len(alternatives))
    for row, found in enumerate(alternatives):
        expect(table.nth(row)).to_contain_text(names[found["name"]])
        expect(table.nth(row)).to_contain_text(dollars(found["cost_micros"]["p50"]))
    expect(forecast.get_by_role("status").first).to_have_text(preview.json()["sentence"])
    assert violations(page) == []


@pytest.mark.full
def test_sliders_change_the_file_by_keyboard(world: SimulatedService, url: str, page: Page) -> None:
    page.clock.set_fixed_time(world.clock.now())
    page.goto(f"{url}/submit")
    file = page.get_by_role("textbox", name="Job file")
    file.fill(FILE)
    deadline = page.get_by_role("slider", name="Deadline")
    expect(deadline).to_have_attribute("aria-valuetext", "2 d after the submission")

    deadline.focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    shorter = re.search(r"deadline: (\w+)", file.input_value())
    page.keyboard.press("Home")

    assert shorter
    assert shorter[1] != "48h"
    expect(file).to_have_value(re.compile(r"# measured"))
    refused = page.get_by_role("list", name="What no plan can keep")
    expect(refused.get_by_role("listitem").first).to_contain_text("#/holdfast/limits/deadline")
    assert violations(page) == []
    budget = page.get_by_role("slider", name="Budget")
    budget.focus()
    page.keyboard.press("End")
    expect(budget).to_have_attribute("aria-valuetext", "none")
    expect(file).not_to_have_value(re.compile("max_cost_usd"))
    expect(deadline).to_be_enabled()


@pytest.mark.full
def test_refused_plan_is_submitted_after_confirmation(
    world: SimulatedService, url: str, page: Page
) -> None:
    page.clock.set_fixed_time(world.clock.now())
    late = FILE.replace("48h", "1h")
    refused = world.http.post("/v1/jobs", json={"task": late})
    assert refused.status_code == 422
    page.goto(f"{url}/submit")
    page.get_by_role("textbox", name="Job file").fill(late)

    page.get_by_role("button", name="Submit", exact=True).click()

    expect(page.get_by_role("alert")).to_contain_text(refused.json()["detail"])
    assert world.http.get("/v1/jobs").json()["jobs"] == []
    page.get_by_label("Submit even if no plan can keep the limits").check()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="due")).to_be_visible()
    expect(page.get_by_role("tab", name="Plan")).to_be_visible()


@pytest.mark.full
def test_deadline_without_a_plan_asks_for_the_work(
    world: SimulatedService, url: str, page: Page
) -> None:
    page.clock.set_fixed_time(world.clock.now())
    page.goto(f"{url}/submit")
    file = page.get_by_role("textbox", name="Job file")
    file.fill(FILE.replace("  plan: {work: 8h} # measured\n", ""))
    forecast = page.get_by_role("region", name="Forecast", exact=True)
    expect(forecast).to_contain_text("Enter the work to see what the deadline needs.")

    forecast.get_by_label("Work", exact=True).fill("8h")

    expect(rows(page, "Forecast of the plan and its alternatives").first).to_be_visible()
    forecast.get_by_role("button", name="Add a plan to the file").click()
    expect(file).to_have_value(re.compile(r"plan:\n    work: 8h\n"))
    expect(forecast.get_by_label("Work", exact=True)).to_have_count(0)


@pytest.mark.full
@pytest.mark.parametrize("width", [390, 1440])
def test_pages_of_plans_fit_the_window(
    width: int, world: SimulatedService, url: str, job: str, page: Page
) -> None:
    page.set_viewport_size({"width": width, "height": 844})

    page.goto(f"{url}/jobs/{job}?tab=plan")
    expect(rows(page, "Choices").first).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(f"{url}/submit")
    page.get_by_role("textbox", name="Job file").fill(FILE)
    expect(rows(page, "Forecast of the plan and its alternatives").first).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
