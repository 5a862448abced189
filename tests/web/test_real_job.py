"""A job of real processes, seen through the dashboard of a real service from its submission to its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from premises import Service
from web.figures import dollars

SOON_MS = 60_000


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service that runs."""
    service = Service(tmp_path)
    service.start()
    yield service
    service.end(signal.SIGTERM)
    service.sweep()


def test_a_job_is_watched_from_its_submission_to_its_bill(service: Service, page: Page) -> None:
    page.goto(service.environment["HOLDFAST_URL"])
    expect(page.get_by_role("heading", name="Submit the first job")).to_be_visible()

    job = service.submit(name="seen", run="echo it begins; sleep 600")
    page.get_by_role("link", name="seen").click()
    page.get_by_role("tab", name="Logs").click()
    expect(page.get_by_role("region", name="Log")).to_contain_text("it begins", timeout=SOON_MS)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator(".sentence")).to_contain_text("cancelled", timeout=SOON_MS)
    bill = service.json("bill", job)

    paid = page.get_by_role("region", name="Cost").locator(".tile").first.locator(".value")
    expect(paid).to_have_text(f"~{dollars(bill['paid_micros'])}", timeout=SOON_MS)
