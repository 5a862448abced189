"""The dialog that resumes a paused job on other nodes: its preview, and what it sends."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect
from support.events import at, paused, pausing
from support.group_events import group_submission
from support.simulated_service import JOB_FILE, SimulatedService
from web.axe import violations
from web.expected_numbers import dollars

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

END = "2026-01-02T06:00:00Z"
PLANNED = f"""{JOB_FILE}  limits: {{deadline: "{END}", max_cost_usd: 500}}
  plan: {{work: 20h}}
"""
CONFIRM = "Resume on these nodes"


def opened(page: Page, url: str, job: str, name: str = "tiny") -> Locator:
    """The open dialog of a job."""
    page.goto(f"{url}/jobs/{job}")
    actions = page.get_by_role("group", name="Actions")
    actions.get_by_role("button", name="Resume on other nodes").click()
    return page.get_by_role("dialog", name=f"Resume {name} on other nodes?")


def row(dialog: Locator, title: str) -> Locator:
    """A row of the comparison of the nodes now and then."""
    table = dialog.get_by_role("table", name="Nodes now and after the resume")
    return table.get_by_role("row").filter(has=dialog.page.get_by_role("rowheader", name=title))


def test_nodes_are_previewed_before_the_job_resumes_on_them(
    world: SimulatedService, url: str, paused_job: str, page: Page
) -> None:
    dialog = opened(page, url, paused_job)
    confirm = dialog.get_by_role("button", name=CONFIRM)
    expect(dialog.get_by_role("status")).to_have_text("No change yet: enter what shall differ.")
    expect(confirm).to_be_disabled()

    dialog.get_by_label("Nodes", exact=True).fill("3")

    expect(dialog.get_by_role("status")).to_have_text("✓ Changes: nodes 3 instead of 2")
    expect(row(dialog, "Nodes").get_by_role("cell")).to_have_text(["2", "3"])
    expect(row(dialog, "Price per hour").get_by_role("cell")).to_have_text(["not rented"] * 2)
    shown = world.http.post(f"/v1/jobs/{paused_job}/resume/preview", json={"nodes": 3}).json()
    expect(dialog).to_contain_text(shown["checkpoints"])
    assert world.job(paused_job)["state"] == "paused"
    confirm.click()
    expect(dialog).to_be_hidden()
    assert world.until(paused_job, "succeeded")["nodes"] == 3


def test_refused_nodes_cannot_be_confirmed_and_say_why(
    world: SimulatedService, url: str, paused_job: str, page: Page
) -> None:
    world.http.put("/v1/quotas/service", json={"nodes": 2})
    dialog = opened(page, url, paused_job)

    dialog.get_by_label("Nodes", exact=True).fill("3")

    reasons = dialog.get_by_role("list", name="Reasons for refusal").get_by_role("listitem")
    expect(reasons).to_have_count(1)
    expect(reasons).to_contain_text("the quota of the service allows 2 nodes at once")
    expect(dialog.get_by_role("status")).to_have_text("✕ Would be refused")
    expect(dialog.get_by_role("button", name=CONFIRM)).to_be_disabled()
    dialog.get_by_label("Nodes", exact=True).press("Enter")
    assert world.job(paused_job)["state"] == "paused"


@pytest.mark.full
def test_price_of_cloud_nodes_is_compared(
    world: SimulatedService, url: str, paused_job: str, page: Page
) -> None:
    asked = {"infra": "aws/us-east-1", "gpus": "A100:8", "spot": False}
    shown = world.http.post(f"/v1/jobs/{paused_job}/resume/preview", json=asked).json()
    dialog = opened(page, url, paused_job)

    dialog.get_by_label("Place or launcher").fill("aws/us-east-1")
    dialog.get_by_label("Accelerators of each node").fill("A100:8")
    dialog.get_by_label("Spot or on demand").select_option("on demand")

    price = f"${shown['after']['micros_per_hour'] / 1e6:,.2f}"
    expect(row(dialog, "Price per hour").get_by_role("cell")).to_have_text(["not rented", price])
    expect(row(dialog, "GPUs").get_by_role("cell").last).to_have_text("A100:8")
    expect(row(dialog, "Bought").get_by_role("cell").last).to_have_text("on demand")
    reasons = dialog.get_by_role("list", name="Reasons for refusal").get_by_role("listitem")
    expect(reasons).to_have_text(shown["refused"])


def test_forecast_of_a_planned_job_is_part_of_the_preview(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = world.submit(PLANNED)["id"]
    world.until(job, "training")
    world.pass_time(25)
    world.http.post(f"/v1/jobs/{job}/pause", json={})
    world.until(job, "paused")
    page.clock.set_fixed_time(world.clock.now())
    shown = world.http.post(f"/v1/jobs/{job}/resume/preview", json={"nodes": 3}).json()
    dialog = opened(page, url, job)

    dialog.get_by_label("Nodes", exact=True).fill("3")

    forecast = shown["forecast"]
    expect(dialog).to_contain_text(f"Forecast: {forecast['sentence']}.")
    table = dialog.get_by_role("table", name="Forecast of the plan and its alternatives")
    rows = table.locator("tbody tr")
    expect(rows).to_have_count(3)
    for number, each in enumerate(forecast["alternatives"]):
        expect(rows.nth(number)).to_contain_text(dollars(each["cost_micros"]["p50"]))
    for heading in ("End", "Late", "Over budget"):
        expect(table.get_by_role("columnheader", name=heading, exact=True)).to_be_visible()
    for note in forecast["notes"]:
        expect(dialog.get_by_text(note, exact=True)).to_be_visible()
    assert violations(page) == []


@pytest.mark.full
def test_missing_forecast_is_explained(world: SimulatedService, url: str, page: Page) -> None:
    job = world.submit()["id"]
    world.http.post(f"/v1/jobs/{job}/pause", json={})
    world.until(job, "paused")
    dialog = opened(page, url, job)

    dialog.get_by_label("Nodes", exact=True).fill("3")

    expect(dialog).to_contain_text("No forecast: how long the job trains is not known")
    expect(dialog.get_by_role("button", name=CONFIRM)).to_be_enabled()


@pytest.mark.full
def test_node_groups_name_another_way_to_other_nodes(
    world: SimulatedService, url: str, page: Page
) -> None:
    world.clock.advance((at(60) - world.clock.now()).total_seconds())
    submitted = world.services.journal.submit("job-1", group_submission())
    job = world.services.journal.append(submitted, [pausing(20), paused(21)]).id
    page.goto(f"{url}/jobs/{job}")

    page.get_by_role("group", name="Actions").get_by_role(
        "button", name="Resume on other nodes"
    ).focus()

    expect(page.get_by_role("tooltip").filter(visible=True)).to_contain_text(
        f"submit it with holdfast.checkpoint.from: {job}"
    )


@pytest.mark.full
def test_malformed_nodes_are_named_at_their_field(url: str, paused_job: str, page: Page) -> None:
    dialog = opened(page, url, paused_job)
    nodes = dialog.get_by_label("Nodes", exact=True)

    nodes.fill("many")

    expect(nodes).to_have_accessible_description(re.compile("“many” is not a number of nodes"))
    expect(dialog.get_by_role("button", name=CONFIRM)).to_be_disabled()
    nodes.fill("4-2")
    errors = dialog.get_by_role("list", name="Errors").get_by_role("listitem")
    expect(errors).to_contain_text("has a min of 4, which is above its max of 2")
    expect(dialog.get_by_role("button", name=CONFIRM)).to_be_disabled()


def test_range_of_nodes_is_sent_with_a_raised_limit(
    world: SimulatedService, url: str, paused_job: str, page: Page
) -> None:
    dialog = opened(page, url, paused_job)

    dialog.get_by_label("Nodes", exact=True).fill("1 - 4")
    dialog.get_by_text("Change limits").click()
    dialog.get_by_label("Maximum cost (USD)", exact=True).fill("25")
    dialog.get_by_role("button", name=CONFIRM).click()

    expect(dialog).to_be_hidden()
    job = world.job(paused_job)
    assert (job["nodes"], job["min_nodes"]) == (4, 1)
    assert job["limits"]["max_cost_usd"].startswith("25")


@pytest.mark.full
def test_reopened_resize_dialog_asks_for_nothing(url: str, paused_job: str, page: Page) -> None:
    dialog = opened(page, url, paused_job)
    dialog.get_by_label("Nodes", exact=True).fill("3")
    expect(dialog.get_by_role("button", name=CONFIRM)).to_be_enabled()
    dialog.get_by_role("button", name="Back").click()

    dialog = opened(page, url, paused_job)

    expect(dialog.get_by_label("Nodes", exact=True)).to_have_value("")
    expect(dialog.get_by_role("status")).to_have_text("No change yet: enter what shall differ.")


@pytest.mark.full
def test_address_opens_the_resize_dialog(url: str, paused_job: str, page: Page) -> None:
    page.goto(f"{url}/jobs/{paused_job}?action=resize")

    dialog = page.get_by_role("dialog", name="Resume tiny on other nodes?")

    expect(dialog.get_by_role("status")).to_have_text("No change yet: enter what shall differ.")


@pytest.mark.full
def test_running_job_explains_that_it_must_be_paused(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = world.submit(JOB_FILE)["id"]
    world.until(job, "training")
    page.goto(f"{url}/jobs/{job}")

    button = page.get_by_role("group", name="Actions").get_by_text("Resume on other nodes")

    reason = world.job(job)["can"]["resume"]["reason"]
    button.hover()
    expect(page.get_by_role("tooltip").filter(visible=True)).to_have_text(f"Not now: {reason}.")
