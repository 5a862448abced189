"""Hints on the page of a job."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from support.events import finished, launched, ready, submitted, training
from support.simulated_service import SimulatedService

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_hints_are_shown_below_the_header(world: SimulatedService, url: str, page: Page) -> None:
    job = world.services.journal.submit("careless-job", submitted())
    world.services.journal.append(job, [launched(1), ready(2), training(3), finished(60)])

    page.goto(f"{url}/jobs/careless-job")

    note = page.get_by_role("region", name="Diagnosis").get_by_role("note")
    expect(note).to_contain_text("finished without a checkpoint")
    expect(note).to_contain_text("attempt 1: the job succeeded without a checkpoint")
