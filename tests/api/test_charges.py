"""The whole bill of a job over HTTP and in the shell: lines beside the nodes, their sum, and the table."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

import pytest
from holdfast.api.routes.billing import bill_table, charges_view
from holdfast.api.schemas.billing import BillOut
from holdfast.cli.billing import print_bill
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.charges.charges import Charges, compute_charges
from holdfast.domain.events import Event, RestoreStarted, Submitted
from holdfast.domain.events.values import StoreCounts
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.lifecycle import fold
from holdfast.pricing.catalog import bundled_resource_prices
from support.events import at, finished, launched, lost, ready, saved, submitted
from support.simulated_service import SimulatedService

GIB = 2**30


def _events(store: str = "s3://bucket/runs", place: str = "aws/eu-west-1") -> list[Event]:
    job = submitted(0, infra="aws", checkpoint={"store": store})
    counts = StoreCounts(puts=1000, uploaded_bytes=10 * GIB)
    return [
        job,
        launched(0),
        replace(ready(0, zone="us-east-1a"), cloud="aws"),
        RestoreStarted(at=at(1), attempt=1, store_place=place),
        saved(10, step=5, size_bytes=10 * GIB, store_usage=counts),
    ]


def _charges(events: list[Event]) -> Charges:
    account = compute_bill(events, {}, at(3600))
    return compute_charges(account, events, bundled_resource_prices(), at(3600))


def test_table_has_a_row_for_each_line_and_adds_up() -> None:
    events = _events()
    account, charges = compute_bill(events, {}, at(3600)), _charges(events)

    header, rows = bill_table(fold("job-1", events), account, charges)

    table = [dict(zip(header, row, strict=True)) for row in rows]
    amounts = [round(float(row["amount_usd"]) * 1_000_000) for row in table]
    assert sum(amounts) == account.paid_micros + charges.micros
    paid = [round(float(row["paid_usd"]) * 1_000_000) for row in table]
    assert sum(paid) == account.paid_micros
    egress = next(row for row in table if row["category"] == "egress")
    assert egress["quantity"] == "10.000000"
    assert egress["unit_usd"] == "0.020000"
    assert egress["amount_usd"] == "0.200000"
    assert {row["category"] for row in table} == {
        *("nodes", "storage", "requests", "egress", "disks")
    }


def test_line_without_a_price_has_no_amount() -> None:
    shown = charges_view(_charges(_events("gs://bucket", place="gcp")))

    assert shown.has_unpriced
    storage = next(line for line in shown.lines if line.category == "storage")
    assert (storage.place, storage.unit_micros, storage.micros) == ("gcp", None, None)


def _shown(events: list[Event]) -> BillOut:
    account = compute_bill(events, {}, at(3600))
    charges = _charges(events)
    whole: dict[str, Any] = {
        "job_id": "job-1",
        "until": account.until,
        "attempts": [],
        "losses": [],
        "waiting_ms": 0,
        "ms": account.ms,
        "micros": account.micros,
        "provisioned_ms": account.ms.total,
        "paid_micros": account.paid_micros,
        "on_demand_micros": account.on_demand_micros,
        "wasted_micros": 0,
        "saved_micros": 0,
        "lost_steps": 0,
        "simulated": False,
        "charges": charges_view(charges),
        "total_micros": account.paid_micros + charges.micros,
    }
    return BillOut.model_validate(whole, from_attributes=True)


def test_shell_prints_lines_sum_and_warning(capsys: pytest.CaptureFixture[str]) -> None:
    print_bill(_shown(_events()))

    text = " ".join(capsys.readouterr().out.split())
    assert "from nodes to the store aws/us-east-1 -> aws/eu-west-1 10.000000 GiB" in text
    assert "$0.200000" in text
    assert "whole bill $" in text
    assert "resource_prices" not in text
    assert "warning: the checkpoint store is in aws/eu-west-1 and the nodes are in" in text


def test_shell_says_what_has_no_price(capsys: pytest.CaptureFixture[str]) -> None:
    print_bill(_shown(_events("gs://bucket", place="gcp")))

    text = " ".join(capsys.readouterr().out.split())
    assert "without what has no known price" in text
    assert "warning" not in text


def test_bill_over_http_contains_the_charges(world: SimulatedService) -> None:
    file = "name: a\nrun: 'true'\nresources: {infra: local}\n"
    job = world.submit(f"{file}holdfast: {{checkpoint: {{store: file:///x}}}}\n")["id"]

    bill = world.http.get(f"/v1/jobs/{job}/bill").json()

    assert bill["charges"]["store_place"] == "files"
    assert bill["charges"]["micros"] == 0
    assert bill["total_micros"] == bill["paid_micros"]
    table = world.http.get(f"/v1/jobs/{job}/bill", headers={"Accept": "text/csv"}).text
    assert next(csv.reader(io.StringIO(table)))[-1] == "amount_usd"


def _append_jobs(world: SimulatedService) -> list[str]:
    """Jobs with stores in two clouds, one of which has no known price, and one without a store."""
    stores = ("s3://bucket/runs", "aws/eu-west-1"), ("gs://team/runs", "gcp"), ("file:///x", "")
    job_ids = []
    for number, (store, place) in enumerate(stores):
        first, *more = _events(store, place)
        assert isinstance(first, Submitted)
        job = world.services.journal.submit(f"job-{number}", first)
        ended = [lost(3000), finished(3600)] * (number < 2)
        job_ids.append(world.services.journal.append(job, [*more, *ended]).id)
    world.clock.advance((at(30 * 24 * 3600) - world.clock.now()).total_seconds())
    return job_ids


@pytest.mark.parametrize("by", ["job", "attempt", "user", "project", "tag:team", "zone", "day"])
def test_totals_over_http_equal_the_whole_bills(world: SimulatedService, by: str) -> None:
    bills = [world.http.get(f"/v1/jobs/{job}/bill").json() for job in _append_jobs(world)]

    body = world.http.get("/v1/costs", params={"by": by}).json()
    table = world.http.get("/v1/costs", params={"by": by, "format": "csv"}).text

    total = body["total"]
    assert total["total_micros"] == sum(bill["total_micros"] for bill in bills)
    assert total["charged_micros"] == sum(bill["charges"]["micros"] for bill in bills)
    assert total["paid_micros"] == sum(bill["paid_micros"] for bill in bills)
    assert min(total["charges"].values()) > 0
    assert sum(total["charges"].values()) == total["charged_micros"]
    for name in ("charged_micros", "total_micros", "paid_micros"):
        assert sum(cost[name] for cost in body["costs"]) == total[name]
    assert total["has_unpriced"]
    assert body["prices_source"] == bills[0]["charges"]["prices_source"]
    rows = list(csv.DictReader(io.StringIO(table)))
    for name in ("charged", "total", "paid"):
        summed = sum(round(float(row[f"{name}_usd"]) * 1e6) for row in rows)
        assert summed == total[f"{name}_micros"]
    assert sum(row["unpriced"] == "true" for row in rows) >= 1


def test_totals_name_the_job_without_a_known_price(world: SimulatedService) -> None:
    _append_jobs(world)

    costs = world.http.get("/v1/costs").json()["costs"]

    found = {cost["key"]: cost["has_unpriced"] for cost in costs}
    assert found == {"job-0": False, "job-1": True, "job-2": False}


def test_limits_and_budgets_count_the_nodes_alone(world: SimulatedService) -> None:
    _append_jobs(world)
    total = world.http.get("/v1/costs").json()["total"]
    world.http.put("/v1/budgets/project/default", json={"monthly_usd": 1000})

    [budget] = world.http.get("/v1/budgets").json()

    assert budget["spent_micros"] == total["paid_micros"] < total["total_micros"]


DISTANT = """
name: a
run: python train.py
resources: {infra: aws/us-east-1, use_spot: true}
holdfast: {checkpoint: {store: s3://bucket/runs, tidy: worker}}
"""
WARNING = (
    "the checkpoint store is in aws/eu-west-1 and the nodes are in aws/us-east-1: "
    "each GiB costs $0.0200 to save and $0.0200 to restore; use a bucket in aws/us-east-1"
)


def test_preview_and_submission_warn_of_a_distant_store(world: SimulatedService) -> None:
    world.services.retention_queue.set_place("s3://bucket/others", "aws/eu-west-1")
    launchers: Any = world.services.launchers
    launchers[Engine.SKYPILOT] = launchers[Engine.LOCAL]

    shown = world.http.post("/v1/render", json={"task": DISTANT, "prices": True}).json()
    job = world.services.journal.submission(world.submit(DISTANT, force=True)["id"])

    assert WARNING in shown["notes"]
    assert WARNING in job.notes


def test_unknown_region_of_a_store_is_not_mentioned(world: SimulatedService) -> None:
    shown = world.http.post("/v1/render", json={"task": DISTANT}).json()

    assert not [note for note in shown["notes"] if "checkpoint store is in" in note]
