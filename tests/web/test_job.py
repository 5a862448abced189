"""The page of a job: its history, cost and actions."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect
from support.events import finished, launched, lost, ready, submitted, training
from support.simulated_service import JOB_FILE, SimulatedService
from web.expected_numbers import dollars, figure

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_bill_matches_the_api_to_the_cent(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    world.until(preempted_job, "succeeded")
    bill = world.http.get(f"/v1/jobs/{preempted_job}/bill").json()

    page.goto(f"{url}/jobs/{preempted_job}")

    cost = page.get_by_role("region", name="Cost", exact=True)
    for label in ("Paid", "On demand", "Saved", "Wasted"):
        result = bill[f"{label.lower().replace(' ', '_')}_micros"]
        expect(figure(cost, label)).to_have_text(f"~{dollars(result)}")
    attempts = page.get_by_role("region", name="Attempts").get_by_role("table").get_by_role("row")
    for row, attempt in enumerate(bill["attempts"], start=1):
        expect(attempts.nth(row)).to_contain_text(f"~{dollars(attempt['paid_micros'])}")
    expect(attempts.nth(1)).to_contain_text("preempted")


def test_every_phase_and_event_of_the_attempts_is_drawn(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    world.until(preempted_job, "succeeded")
    facts = world.http.get(f"/v1/jobs/{preempted_job}/events").json()
    kinds = [fact["kind"] for fact in facts]

    page.goto(f"{url}/jobs/{preempted_job}")

    lanes = page.get_by_role("img", name="Timeline of 3 attempts")
    for words, times in (
        ("checkpoint at step", kinds.count("CheckpointCommitted")),
        ("termination notice at step", kinds.count("PreemptionNoticed")),
        ("resume at step", 2),
        ("preemption", kinds.count("CapacityLost")),
        ("Waiting:", 3),
        ("Lost:", 1),
    ):
        expect(lanes.get_by_text(words)).to_have_count(times)


@pytest.mark.full
def test_cost_over_time_ends_with_the_bill(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    world.until(preempted_job, "succeeded")
    bill = world.http.get(f"/v1/jobs/{preempted_job}/bill").json()

    page.goto(f"{url}/jobs/{preempted_job}")

    paid, full = bill["paid_micros"] / 1e6, bill["on_demand_micros"] / 1e6
    course = page.get_by_role("img", name=re.compile("^Cost over time"))
    expect(course).to_have_accessible_name(
        f"Cost over time: at the end paid ${paid:.6f}, on demand ${full:.6f}, "
        f"saved ${bill['saved_micros'] / 1e6:.6f}"
    )


@pytest.mark.full
def test_termination_notice_is_shown_with_the_worker_state(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    page.goto(f"{url}/jobs/{job}")
    expect(page.get_by_text("● live")).to_be_visible()

    world.take_node(job, notice_s=30, then_s=1)

    expect(page.get_by_role("alert").filter(has_text="Termination notice for job")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Termination notice")).to_contain_text(
        "saving a checkpoint"
    )
    badge = "training, termination notice: saving"
    expect(page.get_by_role("group", name="State")).to_contain_text(badge)
    expect(page).to_have_title(f"tiny · {badge} · Holdfast")
    page.get_by_role("tab", name="Events").click()
    event = page.get_by_role("cell", name="PreemptionNoticed")
    expect(event).to_contain_text("termination notice")
    page.goto(url)
    row = page.get_by_role("region", name="Active jobs").get_by_role("row", name="tiny")
    expect(row).to_contain_text(badge)


@pytest.mark.full
def test_steps_are_labelled_reported_durable_or_logged(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    for _ in range(9):
        world.pass_time(1)
        job = world.job(preempted_job)
        if job["step"] > job["last_checkpoint_step"]:
            break
    reported, durable = job["step"], job["last_checkpoint_step"]
    assert reported > durable > 0

    page.goto(f"{url}/jobs/{preempted_job}?tab=checkpoints")

    expect(page.get_by_role("group", name="State")).to_contain_text(f"reported step {reported} of")
    expect(page.get_by_text(f"durable step {durable}, checkpoint")).to_be_visible()
    tab = page.get_by_role("tabpanel")
    expect(tab).to_contain_text(f"Durable step {durable}: a resume starts from there.")
    expect(tab).to_contain_text(f"Reported step {reported}: {reported - durable} step")
    curve = page.get_by_role("region", name="Training").get_by_role("status").first
    expect(curve).to_contain_text(re.compile(r"^logged at step \d+: "))


@pytest.mark.full
def test_loss_and_pace_charts_mark_preemptions_and_resumes(
    url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")

    training = page.get_by_role("region", name="Training")
    for mark in ("2 preemptions", "2 resumes"):
        expect(training.get_by_text(mark, exact=True)).to_be_visible()
    for name in ("loss", "steps per second"):
        expect(
            training.get_by_role(
                "img", name=re.compile(rf"^{name} over .*2 preemptions, 2 resumes")
            )
        ).to_be_visible()


@pytest.mark.full
def test_debug_bundle_is_downloaded_as_one_file(
    url: str, preempted_job: str, page: Page, tmp_path: Path
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")

    with page.expect_download() as result:
        page.get_by_role("link", name="Evidence as zip").click()

    result.value.save_as(tmp_path / "evidence.zip")
    names = zipfile.ZipFile(tmp_path / "evidence.zip").namelist()
    assert f"holdfast-{preempted_job}/bill.json" in names


@pytest.mark.full
def test_attempt_is_zoomed_by_keyboard_and_by_brush(
    url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")

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


def chart_names(page: Page) -> list[str]:
    """Accessible names of all charts over time or steps: attempts, cost, loss and pace."""
    kinds = ("Timeline of", "Cost over time", "loss over", "steps per second over")
    charts = [page.get_by_role("img", name=re.compile(f"^{kind}")) for kind in kinds]
    for chart in charts:
        expect(chart).to_be_visible()
    return [chart.get_attribute("aria-label") or "" for chart in charts]


def brush(page: Page, chart: str) -> None:
    """Brush the middle third of a chart."""
    it = page.get_by_role("img", name=re.compile(f"^{chart}"))
    it.scroll_into_view_if_needed()
    box = it.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 2 / 3, box["y"] + 40, steps=3)
    page.mouse.up()


@pytest.mark.full
@pytest.mark.parametrize("chart", ["Timeline", "Cost over time", "loss over", "steps per second"])
def test_brushing_one_chart_zooms_all_charts(
    chart: str, world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    world.until(preempted_job, "succeeded")
    page.goto(f"{url}/jobs/{preempted_job}")
    whole = chart_names(page)

    brush(page, chart)

    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    part = chart_names(page)
    assert all(name != before for name, before in zip(part, whole, strict=True)), part
    shown = re.findall(r" from (.+?) to (.+?)[;:] ", " ".join(f"{name} " for name in part[:2]))
    assert len(shown) == 2
    assert shown[0] == shown[1], "lanes and money stand below each other"
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("button", name="Show all")).to_have_count(0)
    assert chart_names(page) == whole


@pytest.mark.full
def test_keyboard_zoom_to_an_attempt_applies_to_all_charts(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    world.until(preempted_job, "succeeded")
    page.goto(f"{url}/jobs/{preempted_job}")
    whole = chart_names(page)

    page.get_by_role("button", name="Zoom to attempt 2").press("Enter")

    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    part = chart_names(page)
    assert all(name != before for name, before in zip(part, whole, strict=True)), part
    page.get_by_role("button", name="Show all").press("Enter")
    expect(page.get_by_role("button", name="Show all")).to_have_count(0)
    assert chart_names(page) == whole


@pytest.mark.full
def test_disallowed_action_shows_the_reason_of_the_service(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    ended = world.until(preempted_job, "succeeded")
    page.goto(f"{url}/jobs/{preempted_job}")
    actions = page.get_by_role("group", name="Actions")

    for name in ("Cancel", "Pause", "Resume", "Limits", "Preempt"):
        button = actions.get_by_role("button", name=name, exact=True)
        button.focus()

        reason = ended["can"][name.lower()]["reason"]
        expect(actions.get_by_role("tooltip").filter(visible=True)).to_have_text(
            f"Not now: {reason}."
        )
        button.click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.mouse.move(0, 0)  # Otherwise this reason stays visible beside the next one.


def test_job_is_cancelled_with_a_reason(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog", name="Cancel tiny?")
    dialog.get_by_label("Reason").fill("learned enough")

    dialog.get_by_role("button", name="Cancel job").click()

    expect(dialog).to_be_hidden()
    expect(page.get_by_role("group", name="State")).to_contain_text("stopping")
    world.until(preempted_job, "cancelled")
    expect(page.get_by_role("group", name="State")).to_contain_text("cancelled")
    assert "learned enough" in world.job(preempted_job)["detail"]


@pytest.mark.full
def test_limit_is_raised_and_an_invalid_one_is_refused(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")
    page.get_by_role("button", name="Limits").click()
    dialog = page.get_by_role("dialog", name="Limits of tiny")
    maximum = dialog.get_by_label("Maximum cost (USD)", exact=True)

    maximum.fill("a lot")
    dialog.get_by_role("button", name="Limits").click()

    expect(dialog.get_by_role("alert")).to_contain_text("max_cost_usd")
    maximum.fill("25")
    dialog.get_by_role("button", name="Limits").click()
    expect(dialog).to_be_hidden()
    limits = world.job(preempted_job)["limits"]
    assert limits["max_cost_usd"].startswith("25")
    assert limits["max_failures"] == 3


@pytest.mark.full
def test_clone_has_the_requested_name_limits_values_and_secrets(
    world: SimulatedService, url: str, page: Page
) -> None:
    secret = f"{JOB_FILE}secrets: {{TOKEN: old}}\nenvs: {{LR: '0.1', SEED: '1'}}\n"
    job = world.submit(secret)["id"]
    page.goto(f"{url}/jobs/{job}")
    page.get_by_role("button", name="Clone").click()
    dialog = page.get_by_role("dialog", name="Clone tiny?")

    dialog.get_by_label("Name", exact=True).fill("other")
    dialog.get_by_text("Change limits").click()
    dialog.get_by_label("Maximum cost (USD)", exact=True).fill("7")
    dialog.get_by_label("Maximum run time").fill("3h")
    dialog.get_by_text("Change environment variables").click()
    dialog.get_by_label("LR", exact=True).fill("0.2")
    dialog.get_by_label("More variables").fill("EXTRA=a=b\n")
    token = dialog.get_by_label("Secret TOKEN")
    expect(token).to_have_attribute("type", "password")
    token.fill("brand new")
    dialog.get_by_role("button", name="Clone").click()

    expect(page.get_by_role("heading", level=1, name="other")).to_be_visible()
    copy = page.url.rsplit("/", 1)[-1]
    submitted = world.services.journal.submission(copy)
    assert submitted.spec["envs"] == {"LR": "0.2", "SEED": "1", "EXTRA": "a=b"}
    assert world.services.secrets.open(copy) == {"TOKEN": "brand new"}
    limits = world.job(copy)["limits"]
    assert limits["max_cost_usd"].startswith("7")
    assert limits["max_duration"] == "3h"
    assert limits["max_failures"] == world.job(job)["limits"]["max_failures"]


@pytest.mark.full
def test_reopened_dialog_has_no_earlier_input(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = world.submit(f"{JOB_FILE}secrets: {{TOKEN: old}}\n")["id"]
    page.goto(f"{url}/jobs/{job}")
    page.get_by_role("button", name="Clone").click()
    dialog = page.get_by_role("dialog", name="Clone tiny?")
    dialog.get_by_text("Change environment variables").click()
    dialog.get_by_label("Variables").fill("nothing")
    dialog.get_by_label("Secret TOKEN").fill("brand new")
    dialog.get_by_role("button", name="Clone").click()
    expect(dialog.get_by_role("alert")).to_contain_text("write NAME=value")

    page.keyboard.press("Escape")
    page.get_by_role("button", name="Clone").click()

    expect(dialog.get_by_label("Secret TOKEN")).to_have_value("")
    expect(dialog.get_by_label("Variables")).to_have_value("")
    expect(dialog.get_by_role("alert")).to_have_count(0)
    dialog.get_by_role("button", name="Clone").click()
    expect(dialog.get_by_label("Secret TOKEN")).to_be_focused()
    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 1


@pytest.mark.full
def test_failed_job_is_retried_with_changed_limits(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = world.submit(JOB_FILE)["id"]
    world.until(job, "training")
    world.pass_time(25)
    world.http.post(f"/v1/jobs/{job}/cancel", json={})
    world.until(job, "cancelled")
    page.goto(f"{url}/jobs/{job}")
    page.get_by_role("button", name="Retry").click()
    dialog = page.get_by_role("dialog", name="Retry tiny?")

    dialog.get_by_text("Change limits").click()
    dialog.get_by_label("Deadline").fill("48h")
    dialog.get_by_role("button", name="Retry").click()

    expect(page.get_by_role("group", name="State")).to_be_visible()
    expect(page).not_to_have_url(re.compile(job))
    copy = world.job(page.url.rsplit("/", 1)[-1])
    assert copy["from_job"] == job
    assert copy["limits"]["deadline"] is not None


@pytest.mark.full
def test_manually_preempted_job_resumes(world: SimulatedService, url: str, page: Page) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    page.goto(f"{url}/jobs/{job}")
    page.get_by_role("button", name="Preempt").click()
    dialog = page.get_by_role("dialog", name="Preempt one node of tiny?")
    dialog.get_by_label("Notice (seconds)").fill("")
    dialog.get_by_label("Accept the loss of steps that are not saved").check()

    dialog.get_by_role("button", name="Preempt").click()
    expect(dialog).to_be_hidden()
    world.pass_time(2)

    expect(page.get_by_role("group", name="State")).to_contain_text("1 preemption")
    world.until(job, "training")
    expect(page.get_by_role("group", name="State")).to_contain_text("attempt 2")


@pytest.mark.full
def test_new_events_appear_without_a_reload(world: SimulatedService, url: str, page: Page) -> None:
    job = world.submit()["id"]
    page.goto(f"{url}/jobs/{job}?tab=events")
    expect(page.get_by_text("● live")).to_be_visible()

    world.until(job, "training")

    expect(page.get_by_role("cell", name="TrainingStarted")).to_be_visible()


@pytest.mark.full
def test_arrow_keys_change_the_tab_and_the_url(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")
    page.get_by_role("tab", name="Timeline").focus()

    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")

    expect(page.get_by_role("tab", name="Checkpoints")).to_be_focused()
    kept = world.http.get(f"/v1/jobs/{preempted_job}/checkpoints").json()["checkpoints"]
    rows = page.get_by_role("tabpanel").get_by_role("row")
    expect(rows).to_have_count(len(kept) + 1)
    page.reload()
    expect(page.get_by_role("tab", name="Checkpoints")).to_have_attribute("aria-selected", "true")


@pytest.mark.full
def test_missing_manifest_explains_how_to_report_one(
    url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}?tab=manifest")

    expect(page.get_by_text("No manifest yet. A script reports it when it enters")).to_be_visible()


@pytest.mark.full
def test_times_are_shown_in_utc_or_local_time(url: str, preempted_job: str, page: Page) -> None:
    page.goto(f"{url}/jobs/{preempted_job}?tab=events")
    expect(page.get_by_role("cell", name="2026-01-01 00:00:00 UTC")).to_be_visible()

    page.get_by_role("button", name="Times are UTC; switch").click()

    expect(page.get_by_role("cell", name="2026-01-01 01:00:00").first).to_be_visible()


@pytest.mark.full
def test_timeline_shows_the_date_where_each_day_begins(
    world: SimulatedService, url: str, page: Page
) -> None:
    day_s = 86_400.0
    first = [launched(1), ready(2), training(3), lost(2 * day_s)]
    second = [ready(2 * day_s + 60, attempt=2), training(2 * day_s + 90, attempt=2)]
    job = world.services.journal.submit("long-job", submitted())
    world.services.journal.append(job, [*first, *second, finished(3 * day_s)])
    body = world.http.get("/v1/jobs/long-job/story").json()
    days = list(dict.fromkeys(one["at"][:10] for one in body if one["at"]))
    assert len(days) == 3

    page.goto(f"{url}/jobs/long-job?tab=timeline")

    lines = page.get_by_role("tabpanel").get_by_role("listitem")
    expect(lines).to_have_count(len(body))
    first_of = [
        next(n for n, one in enumerate(body) if (one["at"] or "")[:10] == day) for day in days
    ]
    dated = lines.filter(has_text=re.compile(r"^\d{4}-\d\d-\d\d"))
    expect(dated).to_have_count(len(days))
    for day, n in zip(days, first_of, strict=True):
        expect(lines.nth(n)).to_contain_text(day)


def test_unknown_job_is_reported_as_not_found(page: Page, url: str) -> None:
    page.goto(f"{url}/jobs/nowhere")

    expect(page.get_by_role("heading", name="Job not found")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("nowhere")


def test_unknown_job_stays_shown_while_it_is_requested_again(page: Page, url: str) -> None:
    page.goto(f"{url}/jobs/nowhere")
    heading = page.get_by_role("heading", name="Job not found")
    expect(heading).to_be_visible()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/v1/jobs/nowhere", hold)

    with page.expect_request("**/v1/jobs/nowhere"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    expect(page.get_by_text("Loading")).to_have_count(0)
    expect(heading).to_be_visible()
    for route in held:
        route.continue_()
    expect(heading).to_be_visible()
