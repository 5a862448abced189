"""Charges beside the nodes: lines of each category, computed by hand, and the warning about distant stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from holdfast.domain.billing.bill import Bill, compute_bill
from holdfast.domain.charges.charges import (
    GIB,
    Category,
    Charges,
    KnownStore,
    compute_charges,
    placement_warning,
    region_of,
)
from holdfast.domain.charges.resource_prices import ResourcePrices
from holdfast.domain.charges.store_usage import DatedUsage
from holdfast.domain.events import CheckpointsRemoved, Event, Removal, RestoreStarted, Submitted
from holdfast.domain.events.values import StoreCounts
from holdfast_worker.protocol.store_usage import StoreUsage
from support.events import at, finished, launched, lost, ready, saved, submitted

HOUR_S = 3600
MONTH_S = 730 * HOUR_S
PRICES = ResourcePrices.parse(
    {
        "storage": {"aws/us-east-1": 0.023},
        "requests": {"aws/us-east-1": {"put": 0.005, "get": 0.0004, "list": 0.005, "delete": 0}},
        "egress": {"aws/us-east-1": {"aws": 0.02, "*": 0.09}, "aws/eu-west-1": {"aws": 0.02}},
        "disks": {"aws/us-east-1": {"medium": {"gib": 0.08, "disk": 6.22}}},
    },
    "prices",
)


def _job(store: str = "s3://bucket/runs", **resources: Any) -> Submitted:
    event = submitted(0, checkpoint={"store": store})
    spec = {**event.spec, "resources": {"infra": "aws", **resources}}
    return replace(event, spec=spec)


def _ready(
    seconds: float = 0, *, attempt: int = 1, zone: str = "us-east-1a", nodes: int = 1
) -> Event:
    return replace(ready(seconds, attempt=attempt, zone=zone, nodes=nodes), cloud="aws")


def _restoring(seconds: float, place: str) -> Event:
    return RestoreStarted(at=at(seconds), attempt=1, store_place=place)


def _charges(
    *events: Event, job: Submitted | None = None, now_s: float = MONTH_S, **more: Any
) -> Charges:
    facts = [job or _job(), launched(0), *events]
    return compute_charges(_bill(facts, now_s), facts, PRICES, at(now_s), **more)


def _bill(facts: list[Event], now_s: float) -> Bill:
    return compute_bill(facts, {}, at(now_s))


def _lines(charges: Charges, category: Category) -> dict[str, tuple[int, int | None]]:
    """Millionths of a unit and the amount, by item."""
    return {
        line.item: (
            round(float(line.units) * 1_000_000),
            None if line.unit_micros is None else line.micros,
        )
        for line in charges.lines
        if line.category is category
    }


def test_stored_checkpoint_costs_its_price_for_a_month() -> None:
    found = _charges(
        _restoring(0, "aws/us-east-1"), saved(0, step=1, size_bytes=100 * GIB), now_s=MONTH_S
    )

    assert _lines(found, Category.STORAGE) == {"stored checkpoints": (100_000_000, 2_300_000)}
    assert found.store_place == "aws/us-east-1"


def test_kept_checkpoint_costs_after_the_end_of_the_job() -> None:
    events = [_restoring(0, "aws/us-east-1"), saved(0, step=1, size_bytes=GIB), finished(60)]

    assert _charges(*events, now_s=2 * MONTH_S).micros == 46_000


def test_removed_checkpoint_costs_until_its_removal() -> None:
    removed = CheckpointsRemoved(
        at=at(MONTH_S / 2), checkpoints=("a",), removal=Removal.SUPERSEDED, size_bytes=GIB
    )
    saved_once = saved(0, step=1, name="a", size_bytes=GIB)

    assert _charges(_restoring(0, "aws/us-east-1"), saved_once, removed).micros == 11_500


def test_requests_of_nodes_and_service_are_separate_lines() -> None:
    counts = StoreCounts(puts=2000, gets=5000, lists=10, deletes=7)
    used = saved(0, step=1, size_bytes=0, store_usage=counts)

    found = _charges(
        _restoring(0, "aws/us-east-1"), used, known=KnownStore(StoreUsage(lists=43_800))
    )

    assert _lines(found, Category.REQUESTS) == {
        "PUT of nodes": (2_000_000, 10_000),
        "GET of nodes": (5_000_000, 2_000),
        "LIST of nodes": (10_000, 50),
        "DELETE of nodes": (7_000, 0),
        "LIST of the service": (43_800_000, 219_000),
    }


def test_bytes_between_regions_cost_what_the_source_takes() -> None:
    counts = StoreCounts(uploaded_bytes=50 * GIB, downloaded_bytes=10 * GIB)
    used = saved(10, step=1, size_bytes=0, store_usage=counts)

    found = _charges(_restoring(0, "aws/eu-west-1"), _ready(), used)

    assert _lines(found, Category.EGRESS) == {
        "from nodes to the store": (50_000_000, 1_000_000),
        "from the store to nodes": (10_000_000, 200_000),
    }
    places = [line.place for line in found.lines if line.category is Category.EGRESS]
    assert places == ["aws/us-east-1 -> aws/eu-west-1", "aws/eu-west-1 -> aws/us-east-1"]


def test_bytes_within_a_region_have_no_line() -> None:
    used = saved(10, step=1, size_bytes=0, store_usage=StoreCounts(uploaded_bytes=GIB))

    assert _lines(_charges(_restoring(0, "aws/us-east-1"), _ready(), used), Category.EGRESS) == {}


def test_each_attempt_pays_for_its_own_region() -> None:
    def used(seconds: float, attempt: int) -> Event:
        counts = StoreCounts(uploaded_bytes=GIB)
        return saved(seconds, attempt=attempt, step=attempt, size_bytes=0, store_usage=counts)

    found = _charges(
        _restoring(0, "aws/us-east-1"),
        *(_ready(0), used(10, 1), lost(20)),
        *(_ready(30, attempt=2, zone="us-west-2b"), used(40, 2)),
    )

    assert _lines(found, Category.EGRESS) == {"from nodes to the store": (1_000_000, None)}


@pytest.mark.parametrize(
    ("resources", "item", "micros"),
    [
        ({}, "disks of 256 GiB, medium", 2 * (256 * 80_000 + 6_220_000)),
        ({"disk_size": 100}, "disks of 100 GiB, medium", 2 * (100 * 80_000 + 6_220_000)),
        ({"disk_size": "1TB"}, "disks of 1024 GiB, medium", 2 * (1024 * 80_000 + 6_220_000)),
        ({"disk_tier": "ultra"}, "disks of 256 GiB, ultra", None),
        (
            {"infra": None, "any_of": [{"infra": "gcp"}, {"infra": "aws", "disk_size": 50}]},
            "disks of 50 GiB, medium",
            2 * (50 * 80_000 + 6_220_000),
        ),
    ],
)
def test_disks_cost_while_nodes_run(
    resources: dict[str, Any], item: str, micros: int | None
) -> None:
    found = _charges(_ready(0, nodes=2), job=_job(**resources))

    assert _lines(found, Category.DISKS) == {item: (2_000_000, micros)}
    assert found.has_unpriced == (micros is None)


def test_own_nodes_and_stores_cost_nothing() -> None:
    job = submitted(0, checkpoint={"store": "file:///shared"})
    used = saved(0, step=1, size_bytes=GIB, store_usage=StoreCounts(puts=5, uploaded_bytes=GIB))

    found = _charges(ready(0), used, job=job)

    assert found.micros == 0
    assert not found.has_unpriced
    assert {line.category for line in found.lines} == {Category.STORAGE, Category.REQUESTS}


def test_unknown_region_is_counted_without_an_amount() -> None:
    found = _charges(_ready(), saved(0, step=1, size_bytes=GIB), job=_job("gs://bucket/runs"))

    assert _lines(found, Category.STORAGE) == {"stored checkpoints": (1_000_000, None)}
    assert found.has_unpriced
    assert not found.warning


def test_endpoint_of_the_job_is_an_own_server() -> None:
    job = _job()
    job = replace(job, spec={**job.spec, "envs": {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}})

    assert _charges(job=job, known=KnownStore(place="aws/eu-west-1")).store_place == "own"
    assert _charges(_restoring(0, "aws/us-east-1"), job=job).store_place == "aws/us-east-1"


def test_place_that_the_store_said_holds_without_a_report() -> None:
    known = KnownStore(place="aws/eu-west-1")

    assert _charges(known=known).store_place == "aws/eu-west-1"
    assert _charges(_restoring(0, "aws/us-east-1"), known=known).store_place == "aws/us-east-1"


def test_price_file_names_the_place_of_a_store() -> None:
    prices = replace(PRICES, stores={"gs://bucket": "aws/us-east-1"})
    facts = [_job("gs://bucket/runs"), launched(0), saved(0, step=1, size_bytes=GIB)]

    found = compute_charges(_bill(facts, MONTH_S), facts, prices, at(MONTH_S))

    assert found.micros == 23_000


def test_lines_add_up_to_the_sum() -> None:
    counts = StoreCounts(puts=333, gets=777, uploaded_bytes=12345678, downloaded_bytes=87654321)
    used = saved(7, step=1, size_bytes=123_456_789, store_usage=counts)

    found = _charges(_restoring(0, "aws/eu-west-1"), _ready(3), used, now_s=98_765)

    assert found.micros == sum(line.micros for line in found.lines) > 0


@pytest.mark.parametrize(
    ("zone", "cloud", "region"),
    [
        ("us-east-1a", "aws", "aws/us-east-1"),
        ("us-east-1/us-east-1a", "aws", "aws/us-east-1"),
        ("aws/us-east-1/us-east-1a", "", "aws/us-east-1"),
        ("us-central1-b", "gcp", "gcp/us-central1"),
        ("eastus", "azure", "azure/eastus"),
        ("unknown", "aws", ""),
        ("us-east-1a", "", ""),
        ("", "aws", ""),
    ],
)
def test_region_of_a_zone(zone: str, cloud: str, region: str) -> None:
    assert region_of(zone, cloud) == region


def test_warning_names_both_regions_and_the_dollars() -> None:
    text = placement_warning("aws/eu-west-1", "aws/us-east-1", 100 * GIB, PRICES)

    assert text == (
        "the checkpoint store is in aws/eu-west-1 and the nodes are in aws/us-east-1: "
        "a save of 100 GiB costs $2.00 and a restore $2.00; use a bucket in aws/us-east-1"
    )
    assert "each GiB costs $0.0200 to save" in placement_warning(
        "aws/eu-west-1", "aws/us-east-1", 0, PRICES
    )
    assert "the price of moving checkpoints between them is unknown" in placement_warning(
        "aws/ap-south-1", "aws/us-east-1", GIB, PRICES
    )


@pytest.mark.parametrize(
    ("store", "nodes"),
    [
        ("aws/us-east-1", "aws/us-east-1"),
        ("aws", "aws/us-east-1"),
        ("own", "aws/us-east-1"),
        ("aws/us-east-1", "elsewhere"),
        ("aws/us-east-1", ""),
        ("", "aws/us-east-1"),
    ],
)
def test_no_warning_where_a_place_is_the_same_or_unknown(store: str, nodes: str) -> None:
    assert placement_warning(store, nodes, GIB, PRICES) == ""


def test_requests_of_the_service_count_on_their_days() -> None:
    day = at(5 * 24 * HOUR_S).date()
    dated = DatedUsage(0, day, StoreUsage(lists=2000))
    known = KnownStore(StoreUsage(lists=3000), (dated,))

    found = _charges(_restoring(0, "aws/us-east-1"), known=known)

    [line] = [line for line in found.lines if line.category is Category.REQUESTS]
    assert [(part.day, part.quantity) for part in line.parts] == [(at(0).date(), 1000), (day, 2000)]
    assert line.micros == 15_000
