"""The page of a job: what happened, what it cost, and what can be done."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from web.figures import dollars, figure
from world import World

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_the_bill_is_that_of_the_api_to_the_cent(
    world: World, url: str, eventful: str, page: Page
) -> None:
    world.until(eventful, "succeeded")
    bill = world.http.get(f"/v1/jobs/{eventful}/bill").json()

    page.goto(f"{url}/jobs/{eventful}")

    cost = page.get_by_role("region", name="Cost")
    for label in ("Paid", "On demand", "Saved", "Wasted"):
        told = bill[f"{label.lower().replace(' ', '_')}_micros"]
        expect(figure(cost, label)).to_have_text(f"~{dollars(told)}")
    attempts = page.get_by_role("region", name="Attempts").get_by_role("table").get_by_role("row")
    for row, attempt in enumerate(bill["attempts"], start=1):
        expect(attempts.nth(row)).to_contain_text(f"~{dollars(attempt['paid_micros'])}")
    expect(attempts.nth(1)).to_contain_text("preempted")


def test_every_phase_and_mark_of_the_attempts_is_drawn(
    world: World, url: str, eventful: str, page: Page
) -> None:
    world.until(eventful, "succeeded")
    facts = world.http.get(f"/v1/jobs/{eventful}/events").json()
    kinds = [fact["kind"] for fact in facts]

    page.goto(f"{url}/jobs/{eventful}")

    lanes = page.get_by_role("img", name="Timeline of 3 attempts")
    for words, times in (
        ("checkpoint at step", kinds.count("CheckpointCommitted")),
        ("notice at step", kinds.count("PreemptionNoticed")),
        ("preempted", kinds.count("CapacityLost")),
        ("Waiting:", 3),
        ("Lost:", 1),
    ):
        expect(lanes.get_by_text(words)).to_have_count(times)


def test_money_over_time_ends_with_the_bill(
    world: World, url: str, eventful: str, page: Page
) -> None:
    world.until(eventful, "succeeded")
    bill = world.http.get(f"/v1/jobs/{eventful}/bill").json()

    page.goto(f"{url}/jobs/{eventful}")

    paid, full = bill["paid_micros"] / 1e6, bill["on_demand_micros"] / 1e6
    course = page.get_by_role("img", name=re.compile("^Money over time"))
    expect(course).to_have_accessible_name(
        f"Money over time: at the end paid ${paid:.6f}, on demand ${full:.6f}, "
        f"saved ${bill['saved_micros'] / 1e6:.6f}"
    )


def test_the_loss_and_the_pace_are_drawn_for_every_attempt_with_its_losses(
    url: str, eventful: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")

    training = page.get_by_role("region", name="Training")
    expect(training.get_by_text("2 losses of nodes")).to_be_visible()
    for name in ("loss", "steps per second"):
        expect(
            training.get_by_role("img", name=re.compile(rf"^{name} over .*lost 2 times"))
        ).to_be_visible()


def test_the_evidence_of_a_job_is_taken_away_as_one_file(
    url: str, eventful: str, page: Page, tmp_path: Path
) -> None:
    page.goto(f"{url}/jobs/{eventful}")

    with page.expect_download() as told:
        page.get_by_role("link", name="Evidence as zip").click()

    told.value.save_as(tmp_path / "evidence.zip")
    names = zipfile.ZipFile(tmp_path / "evidence.zip").namelist()
    assert f"holdfast-{eventful}/bill.json" in names


def test_an_attempt_is_zoomed_to_by_keyboard_and_by_brush(
    url: str, eventful: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")

    page.get_by_role("button", name="Zoom to attempt 2").focus()
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    page.get_by_role("button", name="Show all").click()
    expect(page).not_to_have_url(re.compile("from="))
    box = page.get_by_role("img", name="Timeline").bounding_box()
    assert box
    page.mouse.move(box["x"] + 300, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 20)
    page.mouse.up()
    expect(page.get_by_role("button", name="Show all")).to_be_visible()


def test_what_is_not_allowed_says_why_in_the_words_of_the_service(
    world: World, url: str, eventful: str, page: Page
) -> None:
    ended = world.until(eventful, "succeeded")
    page.goto(f"{url}/jobs/{eventful}")
    actions = page.get_by_role("group", name="Actions")

    for name in ("Cancel", "Pause", "Resume", "Limits", "Preempt"):
        button = actions.get_by_role("button", name=name)
        button.focus()

        reason = ended["can"][name.lower()]["reason"]
        expect(actions.get_by_role("tooltip").filter(visible=True)).to_have_text(
            f"Not now: {reason}."
        )
        button.click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.mouse.move(0, 0)  # Else this reason stays beside the next one.


def test_a_job_is_cancelled_with_a_reason(
    world: World, url: str, eventful: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")
    page.get_by_role("button", name="Cancel").click()
    question = page.get_by_role("dialog", name="Cancel tiny?")
    question.get_by_label("Why").fill("learned enough")

    question.get_by_role("button", name="Cancel").click()

    expect(question).to_be_hidden()
    expect(page.get_by_role("group", name="State")).to_contain_text("stopping")
    world.until(eventful, "cancelled")
    expect(page.get_by_role("group", name="State")).to_contain_text("cancelled")
    assert "learned enough" in world.job(eventful)["detail"]


def test_a_limit_is_raised_and_a_wrong_one_is_refused_in_words(
    world: World, url: str, eventful: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")
    page.get_by_role("button", name="Limits").click()
    question = page.get_by_role("dialog", name="Limits of tiny")
    most = question.get_by_label("Most that its nodes may cost")

    most.fill("a lot")
    question.get_by_role("button", name="Limits").click()

    expect(question.get_by_role("alert")).to_contain_text("max_cost_usd")
    most.fill("25")
    question.get_by_role("button", name="Limits").click()
    expect(question).to_be_hidden()
    limits = world.job(eventful)["limits"]
    assert limits["max_cost_usd"].startswith("25")
    assert limits["max_failures"] == 3


def test_a_job_is_preempted_on_purpose_and_comes_back(world: World, url: str, page: Page) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    page.goto(f"{url}/jobs/{job}")
    page.get_by_role("button", name="Preempt").click()
    question = page.get_by_role("dialog", name="Take a node of tiny?")
    question.get_by_label("Notice in seconds").fill("")

    question.get_by_role("button", name="Preempt").click()
    expect(question).to_be_hidden()
    world.pass_time(2)

    expect(page.get_by_role("group", name="State")).to_contain_text("1 preemption")
    world.until(job, "training")
    expect(page.get_by_role("group", name="State")).to_contain_text("attempt 2")


def test_facts_come_while_one_looks(world: World, url: str, page: Page) -> None:
    job = world.submit()["id"]
    page.goto(f"{url}/jobs/{job}?tab=events")
    expect(page.get_by_text("● live")).to_be_visible()

    world.until(job, "training")

    expect(page.get_by_role("cell", name="TrainingStarted")).to_be_visible()


def test_tabs_move_by_arrows_and_stay_in_the_address(
    world: World, url: str, eventful: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")
    page.get_by_role("tab", name="Story").focus()

    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")

    expect(page.get_by_role("tab", name="Checkpoints")).to_be_focused()
    kept = world.http.get(f"/v1/jobs/{eventful}/checkpoints").json()["checkpoints"]
    rows = page.get_by_role("tabpanel").get_by_role("row")
    expect(rows).to_have_count(len(kept) + 1)
    page.reload()
    expect(page.get_by_role("tab", name="Checkpoints")).to_have_attribute("aria-selected", "true")


def test_times_are_those_of_utc_or_of_the_reader(url: str, eventful: str, page: Page) -> None:
    page.goto(f"{url}/jobs/{eventful}?tab=events")
    expect(page.get_by_role("cell", name="2026-01-01 00:00:00 UTC")).to_be_visible()

    page.get_by_role("button", name="Times are UTC; switch").click()

    expect(page.get_by_role("cell", name="2026-01-01 01:00:00").first).to_be_visible()


def test_a_job_that_is_not_there_is_said_to_be_absent(page: Page, url: str) -> None:
    page.goto(f"{url}/jobs/nowhere")

    expect(page.get_by_role("heading", name="There is no such job")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("nowhere")
