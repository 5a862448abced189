"""The home page shows the values of the API, and updates them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.events import at, finished, launched, ready, submitted, training
from support.simulated_service import JOB_FILE, SimulatedService
from web.expected_numbers import dollars, figure

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.full
def test_empty_home_page_shows_how_to_submit_a_job(page: Page, url: str) -> None:
    page.goto(url)

    expect(page.get_by_role("heading", name="Submit the first job")).to_be_visible()
    expect(page.get_by_text("holdfast submit job.yaml")).to_be_visible()


def test_totals_match_the_api_to_the_cent(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    world.until(preempted_job, "succeeded")
    other = world.submit()["id"]
    world.until(other, "succeeded")
    total = world.http.get("/v1/costs", params={"by": "day", "since": "30d"}).json()["total"]

    page.goto(url)
    expect(page.get_by_role("region", name="Ended", exact=True)).to_be_visible()

    for label in ("Paid", "On demand", "Saved", "Wasted"):
        result = total[f"{label.lower().replace(' ', '_')}_micros"]
        expect(figure(page, label)).to_have_text(f"~{dollars(result)}")
    expect(figure(page, "Preemptions today")).to_have_text("2")
    expect(page.get_by_text("rates need at least 5 preemptions in 30 days")).to_be_visible()
    row = page.get_by_role("region", name="Cost by project").get_by_role("row", name="default")
    paid = row.get_by_role("cell").nth(2).get_by_role("button")
    expect(paid).to_have_text(f"~{dollars(total['paid_micros'])}")


@pytest.mark.full
def test_figure_tooltip_shows_its_calculation(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    world.until(preempted_job, "succeeded")
    total = world.http.get("/v1/costs", params={"since": "30d"}).json()["total"]
    page.goto(url)

    figure(page, "Saved").focus()

    tooltip = page.get_by_role("tooltip").filter(visible=True)
    expect(tooltip).to_be_visible()
    expect(tooltip).to_contain_text("saved = on demand")
    expect(tooltip).to_contain_text(f"${total['saved_micros'] / 1e6:.6f}")
    page.keyboard.press("Escape")
    expect(tooltip).to_be_hidden()


@pytest.mark.full
def test_table_figure_tooltip_shows_its_calculation(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    world.until(preempted_job, "succeeded")
    (cost,) = world.http.get("/v1/costs", params={"by": "project"}).json()["costs"]

    page.goto(url)

    table = page.get_by_role("region", name="Cost by project")
    table.get_by_role("button", name="Saved").focus()
    tooltip = page.get_by_role("tooltip").filter(visible=True)
    expect(tooltip).to_have_text(re.compile("^saved = on demand . paid$"))
    page.keyboard.press("ArrowDown")
    paid, full = cost["paid_micros"] / 1e6, cost["on_demand_micros"] / 1e6
    expect(tooltip).to_contain_text(f"${cost['saved_micros'] / 1e6:.6f}")
    expect(tooltip).to_contain_text(re.compile(rf"= on demand \${full:.6f} . paid \${paid:.6f}"))
    saved = table.get_by_role("row", name="default").get_by_role("cell").nth(4)
    expect(saved.get_by_role("button", name=f"~{dollars(cost['saved_micros'])}")).to_be_focused()
    expect(tooltip).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(tooltip).to_be_hidden()
    page.keyboard.press("ArrowUp")
    expect(table.get_by_role("button", name="Saved")).to_be_focused()


@pytest.mark.full
def test_submitted_job_appears_without_a_reload(
    world: SimulatedService, url: str, page: Page
) -> None:
    page.goto(url)
    expect(page.get_by_text("● live")).to_be_visible()

    world.submit(JOB_FILE.replace("name: tiny", "name: newcomer"))

    expect(page.get_by_role("link", name="newcomer")).to_be_visible()


@pytest.mark.full
def test_paused_job_is_listed_as_needing_attention(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    world.http.post(f"/v1/jobs/{job}/pause", json={"reason": "the loss is odd"})
    world.until(job, "paused")

    page.goto(url)

    needs = page.get_by_role("region", name="Needs you (1)")
    expect(needs).to_contain_text("the loss is odd")
    needs.get_by_role("link", name="tiny", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="tiny")).to_be_visible()


def test_attention_entry_opens_its_action_and_stays_dismissed(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    world.http.post(f"/v1/jobs/{job}/pause", json={"reason": "the loss is odd"})
    world.until(job, "paused")
    page.goto(url)

    page.get_by_role("link", name="Resume tiny").click()

    expect(page.get_by_role("dialog", name="Resume tiny?")).to_be_visible()
    expect(page).to_have_url(f"{url}/jobs/{job}")
    page.goto(url)
    page.get_by_role("button", name="Dismiss tiny").click()
    expect(page.get_by_role("region", name="Needs you")).to_have_count(0)
    page.reload()
    page.get_by_role("button", name="Show 1 dismissed").click()
    expect(page.get_by_role("region", name="Needs you (1)")).to_be_visible()


@pytest.mark.full
def test_active_jobs_are_filtered_by_state(world: SimulatedService, url: str, page: Page) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    world.submit(JOB_FILE.replace("name: tiny", "name: newcomer"))
    page.goto(url)
    jobs = page.get_by_role("region", name="Active jobs")
    expect(jobs.get_by_role("row")).to_have_count(1 + 2)

    page.get_by_role("combobox", name="State").select_option("training")

    expect(jobs.get_by_role("row")).to_have_count(1 + 1)
    expect(jobs.get_by_role("row").nth(1)).to_contain_text("tiny")
    expect(page).to_have_url(f"{url}/?state=training")


@pytest.mark.full
def test_jobs_are_sorted_by_url_searched_and_exported_as_csv(
    world: SimulatedService, url: str, page: Page, tmp_path: Path
) -> None:
    for name in ("'=SUM(A1)'", "beta", "alpha", "gamma"):
        world.submit(JOB_FILE.replace("name: tiny", f"name: {name}"))
    page.goto(f"{url}/?active.sort=name")
    jobs = page.get_by_role("region", name="Active jobs")
    expect(jobs.get_by_role("row").nth(2)).to_contain_text("alpha")

    with page.expect_download() as download:
        page.get_by_role("button", name="CSV of Active jobs").click()
    page.get_by_role("searchbox", name="Find jobs").fill("BET")

    expect(jobs.get_by_role("row")).to_have_count(2)
    expect(page).to_have_url(re.compile(r"find=BET"))
    download.value.save_as(tmp_path / "jobs.csv")
    rows = list(csv.DictReader((tmp_path / "jobs.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["'=SUM(A1)", "alpha", "beta", "gamma"]
    page.get_by_role("searchbox", name="Find jobs").fill("nobody")
    expect(page.get_by_role("region", name="Active", exact=True)).to_contain_text("No job matches")


@pytest.mark.full
def test_tag_filter_of_jobs_is_kept_in_the_url(
    world: SimulatedService, url: str, page: Page
) -> None:
    for name, tags in (
        ("alpha", "team: nlp"),
        ("beta", "team: vision"),
        ("gamma", "team: nlp, run: x=1"),
    ):
        file = JOB_FILE.replace("name: tiny", f"name: {name}")
        world.submit(file.replace("tags: {team: nlp}", f"tags: {{{tags}}}"))
    page.goto(url)
    rows = page.get_by_role("region", name="Active jobs").get_by_role("row")
    expect(rows).to_have_count(1 + 3)

    page.get_by_label("With tag").fill("team=nlp")
    page.get_by_label("With tag").press("Enter")
    expect(rows).to_have_count(1 + 2)
    page.get_by_label("With tag").fill("run:x=1")
    page.get_by_label("With tag").press("Enter")

    expect(rows).to_have_count(1 + 1)
    expect(page).to_have_url(f"{url}/?tagged=team%3Dnlp&tagged=run%3Ax%3D1")
    page.reload()
    expect(rows).to_have_count(1 + 1)
    page.get_by_role("link", name="gamma").click()
    page.get_by_role("link", name="team=nlp").click()
    expect(page).to_have_url(f"{url}/?tagged=team%3Dnlp")
    expect(rows).to_have_count(1 + 2)
    page.get_by_role("button", name="Tag team=nlp: remove from the filter").click()
    expect(rows).to_have_count(1 + 3)
    expect(page).to_have_url(f"{url}/")


@pytest.mark.full
def test_invalid_tag_filter_is_refused_with_a_message(
    world: SimulatedService, url: str, page: Page
) -> None:
    world.submit()
    page.goto(f"{url}/?tagged=team=nobody")
    expect(page.get_by_text("No job has all of these tags").first).to_be_visible()

    page.goto(f"{url}/?tagged=%3F")

    active = page.get_by_role("region", name="Active", exact=True)
    expect(active).to_contain_text("tag: '?' is not a tag; write name:value")


@pytest.mark.full
def test_fleet_link_clears_the_job_filter(world: SimulatedService, url: str, page: Page) -> None:
    for name in ("alpha", "beta"):
        world.submit(JOB_FILE.replace("name: tiny", f"name: {name}"))
    page.clock.install()
    page.goto(url)
    rows = page.get_by_role("region", name="Active jobs").get_by_role("row")
    box = page.get_by_role("searchbox", name="Find jobs")
    box.fill("BET")
    expect(page).to_have_url(re.compile("find=BET"))
    expect(rows).to_have_count(2)

    page.get_by_role("navigation").get_by_role("link", name="Fleet").click()
    expect(box).to_have_value("")
    page.clock.run_for(2_000)

    expect(page).to_have_url(f"{url}/")
    expect(rows).to_have_count(3)


@pytest.mark.full
def test_all_attention_entries_are_shown_within_the_filter(
    world: SimulatedService, url: str, page: Page
) -> None:
    world.cloud.dark = True
    for number in range(6):
        world.submit(JOB_FILE.replace("name: tiny", f"name: job-{number}"))
    world.pass_time(2)
    page.goto(f"{url}/?since=7d&project=default")

    needs = page.get_by_role("region", name="Needs you (6)")
    needs.get_by_role("link", name="All 6").click()

    expect(needs.get_by_role("listitem")).to_have_count(6)
    expect(page).to_have_url(f"{url}/?since=7d&project=default&needs=all")


@pytest.mark.full
def test_daily_costs_of_a_year_are_drawn_completely(
    world: SimulatedService, url: str, page: Page
) -> None:
    ended_s = 230 * 86_400.0
    world.clock.advance((at(ended_s) - world.clock.now()).total_seconds() + 60)
    job = world.services.journal.submit("long-job", submitted())
    facts = [launched(1), ready(2), training(3), finished(ended_s)]
    world.services.journal.append(job, facts)
    asked = {"by": "day", "since": "365d"}
    days = world.http.get("/v1/costs", params=asked).json()["costs"]
    assert len(days) > 200

    page.goto(f"{url}/?since=365d&by=day")

    panel = page.get_by_role("region", name="Cost by day")
    expect(panel.get_by_role("img")).to_have_accessible_name(
        re.compile(f"^Cost of {len(days)} days")
    )
    expect(panel.locator("title").last).to_have_text(re.compile(f"^{days[-1]['key']}: paid"))
    expect(panel.get_by_role("table")).to_have_attribute("aria-rowcount", f"{len(days) + 1}")


@pytest.mark.full
def test_only_visible_rows_of_many_jobs_are_drawn(
    world: SimulatedService, url: str, page: Page
) -> None:
    for number in range(210):
        world.submit(JOB_FILE.replace("name: tiny", f"name: job-{number:03d}"))
    first = world.http.get("/v1/jobs", params={"limit": 200}).json()
    rest = world.http.get("/v1/jobs", params={"limit": 200, "cursor": first["next"]}).json()
    page.goto(url)
    active = page.get_by_role("region", name="Active", exact=True)
    jobs = page.get_by_role("region", name="Active jobs")
    expect(active).to_contain_text("newest 200 of 210")
    expect(figure(page, "Active")).to_have_text("210 jobs")

    active.get_by_role("button", name="Show more").click()

    expect(active).to_contain_text("210 jobs")
    expect(jobs.get_by_role("table")).to_have_attribute("aria-rowcount", "211")
    assert jobs.get_by_role("row").count() < 50
    jobs.evaluate("it => it.scrollTop = it.scrollHeight")
    last = rest["jobs"][-1]["name"]
    expect(jobs.get_by_role("link", name=last)).to_be_visible()


@pytest.mark.full
def test_daily_costs_are_stacked_by_tag(world: SimulatedService, url: str, page: Page) -> None:
    for team in ("nlp", "vision"):
        job = world.submit(JOB_FILE.replace("team: nlp", f"team: {team}"))["id"]
        world.until(job, "succeeded")
    asked = {"by": "day", "each": "tag:team", "since": "30d"}
    body = world.http.get("/v1/costs", params=asked).json()["costs"]
    page.goto(url)
    panel = page.get_by_role("region", name="Cost by day")

    panel.get_by_role("combobox", name="By", exact=True).select_option("tag")
    for word, key in (("Paid", "paid"), ("On demand", "on_demand"), ("Wasted", "wasted")):
        panel.get_by_role("combobox", name="Show", exact=True).select_option(f"{word}, stacked")
        chart = panel.get_by_role("img", name=f"{word} by tag:team of 1 day")
        whole = dollars(sum(cost[f"{key}_micros"] for cost in body))
        for cost in body:
            part = dollars(cost[f"{key}_micros"])
            expect(chart.get_by_text(f"{cost['part']}: {part} of {whole}")).to_have_count(1)

    expect(page).to_have_url(re.compile("by=tag.*show=wasted"))


def test_page_shows_a_lost_connection_and_reconnects(
    world: SimulatedService, page: Page, free_port: int, serve_at: Callable[..., ExitStack]
) -> None:
    service = serve_at(world.app, free_port)
    page.goto(f"http://127.0.0.1:{free_port}")
    expect(page.get_by_text("● live")).to_be_visible()

    world.services.stopping.set()
    service.close()

    expect(page.get_by_role("status").filter(has_text="Disconnected")).to_be_visible(timeout=60_000)
    world.services.stopping.clear()
    serve_at(world.app, free_port)
    expect(page.get_by_text("● live")).to_be_visible(timeout=60_000)
    world.submit(JOB_FILE.replace("name: tiny", "name: afterwards"))
    expect(page.get_by_role("link", name="afterwards")).to_be_visible()
