"""The pages of a job that trains on fewer nodes than it asked for."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Page, expect
from support.events import at, node_lost, replaced
from support.simulated_service import JOB_FILE, SimulatedService
from web.axe import violations

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.full)])
def test_job_on_fewer_nodes_is_degraded(
    theme: Literal["light", "dark"], world: SimulatedService, url: str, page: Page
) -> None:
    elastic = JOB_FILE.replace("num_nodes: 2", "num_nodes: {min: 2, max: 3}")
    job = world.submit(elastic)["id"]
    world.until(job, "training")
    journal, now = world.services.journal, (world.clock.now() - at(0)).total_seconds()
    events = [node_lost(now, nodes=2), replaced(now + 2, step=9, hosted=(1,))]
    journal.append(journal.read(job), events)
    world.pass_time(20)
    page.emulate_media(color_scheme=theme)

    page.goto(f"{url}/?state=degraded")
    expect(page.get_by_role("region", name="Active jobs").get_by_role("row")).to_have_count(2)
    page.goto(f"{url}/jobs/{job}")

    state = page.get_by_role("group", name="State")
    expect(state).to_contain_text("degraded")
    expect(page.get_by_text("training on 2 of 3 nodes: the ranks of node 1")).to_be_visible()
    expect(page.get_by_text("2-3 × simulated")).to_be_visible()  # noqa: RUF001
    lanes = page.get_by_role("img", name="Timeline of 1 attempt")
    expect(lanes.get_by_text("of the attempt on fewer nodes")).to_have_count(1)
    assert violations(page) == []
