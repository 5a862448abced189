"""What the trouble of a job looks like, on its page."""

from __future__ import annotations

import pytest
from histories import finished, launched, ready, submitted, training
from playwright.sync_api import Page, expect
from world import World

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_what_the_trouble_looks_like_stands_above_the_story(
    world: World, url: str, page: Page
) -> None:
    job = world.services.journal.submit("careless-job", submitted())
    world.services.journal.append(job, [launched(1), ready(2), training(3), finished(60)])

    page.goto(f"{url}/jobs/careless-job?tab=story")

    note = page.get_by_role("tabpanel").get_by_role("note")
    expect(note).to_contain_text("no checkpoint of it was kept")
    expect(note).to_contain_text("attempt 1: it has succeeded without a checkpoint")
