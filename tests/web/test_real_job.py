"""A real job in the dashboard of a real service, from its submission to its end."""

from __future__ import annotations

import re
import signal

import pytest
from playwright.sync_api import Page, expect
from support.held_example import held_example, release
from support.live_service import Service
from web.expected_numbers import dollars, figure

SOON_MS = 120_000
STEPS = 120


def test_job_is_shown_from_its_submission_to_its_bill(service: Service, page: Page) -> None:
    page.goto(service.environment["HOLDFAST_URL"])
    expect(page.get_by_role("heading", name="Submit the first job")).to_be_visible()

    job = service.submit(name="seen", run="echo it begins; sleep 600")
    page.get_by_role("link", name="seen").click()
    page.get_by_role("tab", name="Logs").click()
    expect(page.get_by_role("region", name="Log", exact=True)).to_contain_text(
        "it begins", timeout=SOON_MS
    )
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    expect(page.get_by_role("group", name="State")).to_contain_text("cancelled", timeout=SOON_MS)
    bill = service.json("bill", job)

    cost = page.get_by_role("region", name="Cost", exact=True)
    expect(figure(cost, "Paid")).to_have_text(f"~{dollars(bill['paid_micros'])}", timeout=SOON_MS)


@pytest.mark.full
def test_job_survives_preemption_and_restart_on_its_page(service: Service, page: Page) -> None:
    store = service.folder / "store"
    address = service.environment["HOLDFAST_URL"]
    page.goto(f"{address}/submit")
    page.get_by_label("Name", exact=True).fill("through-it-all")
    page.get_by_label("Working directory").fill(str(held_example(service.folder)))
    page.get_by_label("Command", exact=True).fill(
        f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.1"
    )
    page.get_by_label("Checkpoint store").fill(f"file://{store}")
    page.get_by_label("Checkpoint every").fill("10 steps")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="through-it-all")).to_be_visible()
    job = page.url.rsplit("/", 1)[-1]
    state = page.get_by_role("group", name="State")

    # The job trains, is preempted, and resumes from its checkpoint. It is held until all that is seen.
    expect(state).to_contain_text("training", timeout=SOON_MS)
    service.until(job, lambda job: (job["last_checkpoint_step"] or 0) >= 10)
    page.get_by_role("button", name="Preempt").click()
    dialog = page.get_by_role("dialog", name="Preempt one node of through-it-all?")
    dialog.get_by_label("Notice (seconds)").fill("")
    dialog.get_by_label("Accept the loss of steps that are not saved").check()
    dialog.get_by_role("button", name="Preempt").click()
    expect(state).to_contain_text("1 preemption", timeout=SOON_MS)
    expect(state).to_contain_text(re.compile("training.*attempt 2"), timeout=SOON_MS)

    # The service stops and starts again; the page shows both and misses no event.
    service.end(signal.SIGKILL)
    gone = page.get_by_role("status").filter(has_text="Disconnected")
    expect(gone).to_be_visible(timeout=SOON_MS)
    service.start()
    expect(page.get_by_text("● live")).to_be_visible(timeout=SOON_MS)
    expect(gone).to_have_count(0)
    release(service.folder)
    expect(state).to_contain_text("succeeded", timeout=2 * SOON_MS)
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_role("cell", name="Finished", exact=True)).to_be_visible()

    # The displayed bill equals that of the service for each attempt.
    bill = service.json("bill", job)
    cost = page.get_by_role("region", name="Cost", exact=True)
    for label in ("Paid", "On demand", "Wasted"):
        result = bill[f"{label.lower().replace(' ', '_')}_micros"]
        expect(figure(cost, label)).to_have_text(f"~{dollars(result)}")
    rows = page.get_by_role("region", name="Phases and cost of each attempt").get_by_role("row")
    expect(rows).to_have_count(1 + len(bill["attempts"]))
    lost = page.get_by_role("region", name="Training").get_by_text("1 preemption", exact=True)
    expect(lost).to_be_visible()
