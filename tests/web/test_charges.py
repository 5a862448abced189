"""What a job costs beside its nodes, on the page of the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from holdfast.domain.events import RestoreStarted
from holdfast.domain.events.values import StoreCounts
from playwright.sync_api import Page, expect
from support.events import at, finished, launched, lost, ready, saved, submitted
from support.simulated_service import SimulatedService
from web.axe import violations
from web.expected_numbers import dollars, figure

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


def _append_jobs(world: SimulatedService) -> None:
    """An ended job whose bucket is far away, and one whose bucket has no known price."""
    stores = ("s3://bucket/runs", "aws/eu-west-1"), ("gs://team/runs", "gcp")
    for number, (store, place) in enumerate(stores):
        first = submitted(0, infra="aws", checkpoint={"store": store}, tags={"team": f"t{number}"})
        first = replace(first, project=f"p{number}")
        counts = StoreCounts(puts=1000, uploaded_bytes=100 * 2**30)
        world.services.journal.append(
            world.services.journal.submit(f"job-{number}", first),
            [
                launched(1),
                replace(ready(2, zone="us-east-1a"), cloud="aws"),
                RestoreStarted(at=at(3), attempt=1, store_place=place),
                saved(10, step=5, size_bytes=100 * 2**30, store_usage=counts),
                lost(3000),
                finished(3600),
            ],
        )
    world.clock.advance((at(20 * 24 * 3600) - world.clock.now()).total_seconds())


def test_home_shows_what_is_beside_the_nodes(world: SimulatedService, url: str, page: Page) -> None:
    _append_jobs(world)
    body = world.http.get("/v1/costs", params={"by": "project", "since": "30d"}).json()
    priced, unpriced = sorted(body["costs"], key=lambda cost: cost["key"])
    total = body["total"]

    page.goto(url)

    tile = figure(page, "Beside nodes")
    expect(tile).to_have_text(f"≥ {dollars(total['charged_micros'])}")
    expect(page.get_by_text("partly without a price")).to_contain_text(
        f"~{dollars(total['total_micros'])} in total"
        if total["simulated"]
        else f"{dollars(total['total_micros'])} in total"
    )
    table = page.get_by_role("table", name="Cost by project")
    rows = [table.get_by_role("row").filter(has_text=cost["key"]) for cost in (priced, unpriced)]
    for row, cost in zip(rows, (priced, unpriced), strict=True):
        mark = "≥ " * cost["has_unpriced"]
        expect(row).to_contain_text(f"{mark}{dollars(cost['charged_micros'])}")
        expect(row).to_contain_text(dollars(cost["total_micros"]))
    assert priced["total_micros"] == priced["paid_micros"] + priced["charged_micros"]
    for scheme, width in VIEWS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        assert violations(page) == []


def test_days_can_be_stacked_by_what_is_beside_the_nodes(
    world: SimulatedService, url: str, page: Page
) -> None:
    _append_jobs(world)
    asked = {"by": "day", "each": "project", "since": "30d"}
    costs = world.http.get("/v1/costs", params=asked).json()["costs"]

    page.goto(f"{url}/?by=project")
    page.get_by_label("Show").select_option("Beside nodes, stacked")

    chart = page.get_by_role("img", name="Beside nodes by project")
    assert len({cost["key"] for cost in costs}) > 15
    whole = dollars(sum(cost["charged_micros"] for cost in costs if cost["key"] == costs[0]["key"]))
    part = dollars(costs[0]["charged_micros"])
    expect(chart.get_by_text(f"{costs[0]['part']}: {part} of {whole}").first).to_be_attached()
