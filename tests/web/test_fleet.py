"""The home page: what it tells is what the API tells, and it goes on telling."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from web.figures import dollars
from world import JOB_FILE, World

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def tile(page: Page, label: str) -> str:
    """The figure that stands below a label."""
    return (
        page.locator(".tile", has=page.get_by_text(label, exact=True))
        .locator(".value")
        .inner_text()
    )


def test_who_has_no_job_yet_is_told_how_to_submit_one(page: Page, url: str) -> None:
    page.goto(url)

    expect(page.get_by_role("heading", name="Submit the first job")).to_be_visible()
    expect(page.get_by_text("holdfast submit job.yaml")).to_be_visible()


def test_the_sums_are_those_of_the_api_to_the_cent(
    world: World, url: str, eventful: str, page: Page
) -> None:
    world.until(eventful, "succeeded")
    other = world.submit()["id"]
    world.until(other, "succeeded")
    total = world.http.get("/v1/costs", params={"by": "day", "since": "30d"}).json()["total"]

    page.goto(url)
    expect(page.get_by_role("region", name="Ended")).to_be_visible()

    for label in ("Paid", "On demand", "Saved", "Wasted"):
        told = total[f"{label.lower().replace(' ', '_')}_micros"]
        assert tile(page, label) == f"~{dollars(told)}", label
    assert tile(page, "Preemptions today") == "2"
    row = page.get_by_role("region", name="Cost by project").get_by_role("row", name="default")
    expect(row.get_by_role("cell").nth(2)).to_have_text(f"~{dollars(total['paid_micros'])}")


def test_a_figure_says_how_it_came_about(world: World, url: str, eventful: str, page: Page) -> None:
    world.until(eventful, "succeeded")
    total = world.http.get("/v1/costs", params={"since": "30d"}).json()["total"]
    page.goto(url)

    saved = page.locator(".tile", has=page.get_by_text("Saved", exact=True))
    saved.get_by_role("button").focus()

    says = saved.get_by_role("tooltip")
    expect(says).to_be_visible()
    expect(says).to_contain_text("saved = on demand")
    expect(says).to_contain_text(f"${total['saved_micros'] / 1e6:.6f}")
    page.keyboard.press("Escape")
    expect(says).to_be_hidden()


def test_a_job_that_is_submitted_appears_by_itself(world: World, url: str, page: Page) -> None:
    page.goto(url)
    expect(page.get_by_text("● live")).to_be_visible()

    world.submit(JOB_FILE.replace("name: tiny", "name: newcomer"))

    expect(page.get_by_role("link", name="newcomer")).to_be_visible()


def test_what_needs_somebody_stands_above_the_rest(world: World, url: str, page: Page) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    world.http.post(f"/v1/jobs/{job}/pause", json={"reason": "the loss is odd"})
    world.until(job, "paused")

    page.goto(url)

    needs = page.get_by_role("region", name="Needs you (1)")
    expect(needs).to_contain_text("the loss is odd")
    needs.get_by_role("link", name="tiny").click()
    expect(page.get_by_role("heading", level=1, name="tiny")).to_be_visible()


def test_a_table_is_filtered_and_sorted_by_the_address_and_saved_as_it_stands(
    world: World, url: str, page: Page, tmp_path: Path
) -> None:
    for name in ("'=SUM(A1)'", "beta", "alpha", "gamma"):
        world.submit(JOB_FILE.replace("name: tiny", f"name: {name}"))
    page.goto(f"{url}/?active.sort=name")
    jobs = page.get_by_role("region", name="Active jobs")
    expect(jobs.get_by_role("row").nth(2)).to_contain_text("alpha")

    with page.expect_download() as everything:
        page.get_by_role("button", name="CSV of Active jobs").click()
    page.get_by_label("Filter Active jobs").fill("bet")

    expect(jobs.get_by_role("row")).to_have_count(2)
    expect(page).to_have_url(re.compile(r"active\.find=bet"))
    everything.value.save_as(tmp_path / "jobs.csv")
    rows = list(csv.DictReader((tmp_path / "jobs.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["'=SUM(A1)", "alpha", "beta", "gamma"]


def test_a_service_that_is_gone_is_told_and_one_that_is_back_is_taken_up(
    world: World, page: Page, free_port: int, serve_at: Callable[..., ExitStack]
) -> None:
    service = serve_at(world.app, free_port)
    page.goto(f"http://127.0.0.1:{free_port}")
    expect(page.get_by_text("● live")).to_be_visible()

    world.services.stopping.set()
    service.close()

    expect(page.get_by_role("status").filter(has_text="Not live since")).to_be_visible(
        timeout=30_000
    )
    world.services.stopping.clear()
    serve_at(world.app, free_port)
    expect(page.get_by_text("● live")).to_be_visible(timeout=30_000)
    world.submit(JOB_FILE.replace("name: tiny", "name: afterwards"))
    expect(page.get_by_role("link", name="afterwards")).to_be_visible()
