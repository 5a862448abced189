"""The page of the queue: who waits and why, quotas, and shares of users."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import Locator, Page, expect
from support.principals import OWN, create_principals
from support.simulated_service import JOB_FILE, SimulatedService
from web.axe import violations

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def submit(world: SimulatedService, name: str) -> str:
    job_id: str = world.submit(JOB_FILE.replace("name: tiny", f"name: {name}"))["id"]
    return job_id


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def fill_queue(world: SimulatedService) -> list[str]:
    """One job that holds all nodes, and two that wait."""
    world.http.put("/v1/quotas/service", json={"nodes": 2, "hourly_usd": 40})
    first = submit(world, "first")
    world.until(first, "training")
    return [first, submit(world, "second"), submit(world, "third")]


def test_queue_shows_who_waits_and_a_changed_priority(
    world: SimulatedService, url: str, page: Page
) -> None:
    _, second, third = fill_queue(world)
    page.goto(f"{url}/queue")
    rows = region(page, "Waiting jobs, in the order of admission").get_by_role("row")
    expect(rows).to_have_count(3)
    ahead = min((second, "second"), (third, "third"))[1]
    expect(rows.nth(1).get_by_role("link")).to_have_text(ahead)
    expect(rows.nth(1)).to_contain_text("waits for 2 nodes of the quota of the service")
    expect(rows.nth(2)).to_contain_text(f"behind {ahead}")

    last = rows.nth(2)
    last.get_by_role("button", name="Priority").click()
    dialog = last.get_by_role("dialog")
    dialog.get_by_label("Priority").fill("9")
    dialog.get_by_role("button", name="Change priority").click()

    expect(rows.nth(2)).to_contain_text(ahead)
    expect(rows.nth(1)).not_to_contain_text(f"behind {ahead}")
    quota = region(page, "Quotas, and what is held of them").get_by_role("row", name="service")
    expect(quota.get_by_role("progressbar", name="2 of 2 held")).to_be_visible()
    expect(quota).to_contain_text("$0.00 / $40.00")
    share = region(page, "Shares of users, the least first").get_by_role("row").nth(1)
    assert [text.strip() for text in share.get_by_role("cell").all_inner_texts()[2:]] == [
        *("1", "2", "0", "2")
    ]


def test_viewer_sees_the_queue_and_changes_nothing(
    world: SimulatedService, url: str, page: Page
) -> None:
    principals = create_principals(world)
    world.http.put("/v1/quotas/service", json={"nodes": 2})
    world.until(principals.own, "succeeded")
    boss = principals.person("boss")
    for _ in range(2):
        boss.post("/v1/jobs", json={"task": JOB_FILE, "project": OWN})
    world.app.state.services = replace(world.services, trust_loopback=False)
    page.goto(f"{url}/queue")
    page.get_by_label("Access token").fill(principals.token("viewer")[0])
    page.get_by_role("button", name="Log in").click()
    rows = region(page, "Waiting jobs, in the order of admission").get_by_role("row")
    expect(rows.nth(1)).to_be_visible()

    rows.nth(1).get_by_role("button", name="Priority").focus()

    expect(page.get_by_role("tooltip").filter(visible=True)).to_contain_text("Not now: ")
    expect(page.get_by_role("dialog", name="Priority")).to_have_count(0)


def test_queue_without_quotas_says_so(url: str, page: Page) -> None:
    page.goto(f"{url}/queue")

    expect(page.get_by_text("No job waits for room in a quota.")).to_be_visible()
    expect(page.get_by_text("holdfast quota set service --gpus 64")).to_be_visible()


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_queue_page_is_accessible(
    world: SimulatedService, url: str, page: Page, scheme: str, width: int
) -> None:
    fill_queue(world)
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})

    page.goto(f"{url}/queue")
    expect(page.get_by_role("button", name="Priority").first).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)

    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
