"""What a job costs beside its nodes, on the page of the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from holdfast.domain.events import RestoreStarted
from holdfast.domain.events.values import StoreCounts
from playwright.sync_api import Page, expect
from support.events import at, finished, launched, ready, saved, submitted
from support.simulated_service import SimulatedService
from web.axe import violations

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

VIEWS: list[tuple[Literal["light", "dark"], int]] = [("light", 1440), ("dark", 390)]


def test_whole_bill_names_lines_sum_and_a_distant_store(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = submitted(0, infra="aws", checkpoint={"store": "s3://bucket/runs"})
    counts = StoreCounts(puts=1000, uploaded_bytes=10 * 2**30)
    world.services.journal.append(
        world.services.journal.submit("far-job", job),
        [
            launched(1),
            replace(ready(2, zone="us-east-1a"), cloud="aws"),
            RestoreStarted(at=at(3), attempt=1, store_place="aws/eu-west-1"),
            saved(10, step=5, size_bytes=10 * 2**30, store_usage=counts),
            finished(20),
        ],
    )

    page.goto(f"{url}/jobs/far-job")

    cost = page.get_by_role("region", name="Cost", exact=True)
    table = cost.get_by_role("table", name="Beside the nodes")
    egress = table.get_by_role("row").filter(has_text="from nodes to the store")
    expect(egress).to_contain_text("aws/us-east-1 -> aws/eu-west-1")
    expect(egress).to_contain_text("10.000000")
    expect(egress).to_contain_text("$0.200000")
    expect(cost).to_contain_text("Whole bill")
    expect(cost).to_contain_text("the checkpoint store is in aws/eu-west-1")
    for scheme, width in VIEWS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        assert violations(page) == []
