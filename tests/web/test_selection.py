"""Filters of the home page, and the dialog that acts on the jobs that they select."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from support.simulated_service import JOB_FILE, SimulatedService
from web.axe import violations

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def submit(world: SimulatedService, name: str, tags: str) -> str:
    file = JOB_FILE.replace("name: tiny", f"name: {name}").replace("{team: nlp}", tags)
    job_id: str = world.submit(file)["id"]
    return job_id


def test_selected_jobs_are_cancelled_after_a_preview(
    world: SimulatedService, url: str, page: Page
) -> None:
    nlp, dev = submit(world, "alpha", "{team: nlp}"), submit(world, "beta", "{team: nlp, x: dev}")
    page.goto(url)
    active = page.get_by_role("region", name="Active", exact=True)
    expect(active.get_by_role("link", name="alpha")).to_be_visible()

    search = page.get_by_role("search", name="Filter jobs")
    search.get_by_label("Tags match").fill("team=nlp,x!=dev")
    search.get_by_label("Tags match").press("Enter")
    expect(active.get_by_role("link", name="beta")).to_have_count(0)
    page.get_by_role("button", name="Act on the selection").click()
    dialog = page.get_by_role("dialog", name="Act on the jobs of the filter")
    expect(dialog.get_by_role("status")).to_have_text(
        "1 job would change, 0 would not, 0 would be refused."
    )
    dialog.get_by_role("button", name="Cancel 1 job").click()

    done = page.get_by_role("dialog", name="Cancel: results")
    expect(done.get_by_role("status")).to_have_text("1 job done, 0 unchanged, 0 refused.")
    assert world.job(nlp)["state"] in {"stopping", "cancelled"}
    assert world.job(dev)["state"] not in {"stopping", "cancelled"}


def test_checked_jobs_are_paused_and_no_others(
    world: SimulatedService, url: str, page: Page
) -> None:
    ids = {name: submit(world, name, "{team: nlp}") for name in ("alpha", "beta", "gamma")}
    for job_id in ids.values():
        world.until(job_id, "training")
    page.goto(url)
    active = page.get_by_role("region", name="Active jobs", exact=True)
    active.get_by_label("Select all of Active jobs").check()
    expect(page.get_by_role("button", name="Act on 3 selected jobs")).to_be_visible()

    active.get_by_label("Select all of Active jobs").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    page.get_by_role("button", name="Act on 2 selected jobs").click()
    dialog = page.get_by_role("dialog", name="Act on 2 selected jobs")
    dialog.get_by_label("Action", exact=True).select_option("pause")
    dialog.get_by_role("button", name="Pause 2 jobs").click()

    done = page.get_by_role("dialog", name="Pause: results")
    expect(done.get_by_role("status")).to_have_text("2 jobs done, 0 unchanged, 0 refused.")
    states = [world.job(job_id)["state"] for job_id in ids.values()]
    assert sorted(state in {"pausing", "paused"} for state in states) == [False, True, True]
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_role("button", name="Act on the selection")).to_be_visible()


def test_malformed_selector_shows_the_reason(world: SimulatedService, url: str, page: Page) -> None:
    submit(world, "alpha", "{team: nlp}")
    page.goto(f"{url}/?selector=a%3E3")

    active = page.get_by_role("region", name="Active", exact=True)

    expect(active.get_by_text("selector: 'a>3' is not a condition").first).to_be_visible()


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_filters_and_dialog_are_accessible(
    world: SimulatedService, url: str, page: Page, scheme: str, width: int
) -> None:
    submit(world, "alpha", "{team: nlp}")
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(url)
    page.get_by_role("button", name="Act on the selection").click()
    dialog = page.get_by_role("dialog", name="Act on the jobs of the filter")
    dialog.get_by_label("Action", exact=True).select_option("label")
    dialog.get_by_label("Tags", exact=True).fill("stage=dev")
    expect(dialog.get_by_role("button", name="Label 1 job")).to_be_enabled()

    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
