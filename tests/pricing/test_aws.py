"""Spot prices of AWS, from moto's EC2 over HTTP.

A market in this module provides `describe_spot_price_history`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from holdfast.domain.pricing.quotes import PricePoint, PriceQuery, QuoteSource
from holdfast.pricing.aws import CACHE_TTL, AwsSpot, AwsUnavailable, Ec2, connect
from holdfast.pricing.catalog import Catalog, bundled_snapshot
from holdfast.pricing.skypilot_catalog import SkyPilotCatalog
from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from support.fakes import FixedClock
from worker.support.s3_servers import credentials

P4D = "p4d.24xlarge"
A, B = "us-east-1a", "us-east-1b"
PAGE = 2
"""Entries per page. AWS returns up to 1000."""


@dataclass
class Market:
    """The spot market that moto lacks: prices change as AWS documents."""

    clock: FixedClock
    changes: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def change(self, zone: str, hours_ago: float, usd: str, product: str = "Linux/UNIX") -> None:
        self.changes.append(
            {
                "InstanceType": P4D,
                "ProductDescription": product,
                "SpotPrice": usd,
                "AvailabilityZone": zone,
                "Timestamp": self.clock.now() - timedelta(hours=hours_ago),
            }
        )

    def page(self, response: Any) -> dict[str, Any]:
        """One page of `describe_spot_price_history`, newest first, as AWS documents it."""
        ask = {
            name: response._get_param(name)
            for name in (
                "InstanceTypes",
                "ProductDescriptions",
                "StartTime",
                "EndTime",
                "NextToken",
            )
        }
        self.asked.append(ask)
        entries = self._between(_time(ask["StartTime"]), _time(ask["EndTime"]), ask)
        first = int(ask["NextToken"] or 0)
        last = first + PAGE
        token = str(last) if last < len(entries) else ""
        return {"SpotPriceHistory": entries[first:last], "NextToken": token}

    def _between(
        self, since: datetime, until: datetime, ask: dict[str, Any]
    ) -> list[dict[str, Any]]:
        fit = [
            entry
            for entry in self.changes
            if entry["InstanceType"] in ask["InstanceTypes"]
            if entry["ProductDescription"] in ask["ProductDescriptions"]
        ]
        fit.sort(key=lambda entry: entry["Timestamp"], reverse=True)
        inside = [entry for entry in fit if since < entry["Timestamp"] <= until]
        before: dict[str, dict[str, Any]] = {}
        for entry in fit:
            if entry["Timestamp"] <= since:
                before.setdefault(entry["AvailabilityZone"], entry)
        return [*inside, *before.values()]


def _time(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC)  # Moto parses times without their zone.


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """EC2 on this machine."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def market(endpoint: str, clock: FixedClock, monkeypatch: pytest.MonkeyPatch) -> Market:
    """AWS with a market, and credentials for it."""
    market = Market(clock)
    method = "describe_spot_price_history"
    monkeypatch.setattr(EC2Response, method, lambda told_by: ActionResult(market.page(told_by)))
    for name, value in credentials(endpoint).items():
        monkeypatch.setenv(name, value)
    return market


@pytest.fixture
def spot(clock: FixedClock) -> AwsSpot:
    """The price source under test."""
    return AwsSpot(clock, connect)


def test_current_price_is_last_change_per_zone_across_pages(
    market: Market, spot: AwsSpot, clock: FixedClock
) -> None:
    for hours in (30, 20, 10):
        market.change(A, hours, f"{hours}.5")
        market.change(B, hours, f"{hours}.25")
    market.change("us-east-1c", 40, "7.000000")

    quotes = spot.quotes("us-east-1", P4D, clock.now())

    assert {quote.zone: quote.spot_micros_per_hour for quote in quotes} == {
        A: 10_500_000,
        B: 10_250_000,
        "us-east-1c": 7_000_000,
    }
    assert {(quote.tier, quote.source, quote.as_of) for quote in quotes} == {
        (QuoteSource.LIVE, "AWS spot price history", clock.now())
    }
    assert len(market.asked) == 2


def test_price_from_before_the_interval_holds_in_it(
    market: Market, spot: AwsSpot, clock: FixedClock
) -> None:
    market.change(A, 200, "9.0")
    market.change(A, 100, "8.0")
    market.change(A, 2, "6.0")
    market.change(A, 1, "7.0")
    market.change(B, 2, "99.0")
    wanted = PriceQuery(cloud="aws", region="us-east-1", zone=A, instance_type=P4D)

    result = spot.history(wanted, clock.now() - timedelta(hours=3), clock.now())

    at = [clock.now() - timedelta(hours=hours) for hours in (100, 2, 1)]
    assert result == tuple(
        PricePoint(at=moment, micros_per_hour=micros)
        for moment, micros in zip(at, (8_000_000, 6_000_000, 7_000_000), strict=True)
    )


def test_overlapping_history_queries_return_all_price_changes(
    market: Market, spot: AwsSpot, clock: FixedClock
) -> None:
    market.change(A, 50, "5.0")
    market.change(A, 0.99, "6.0")
    market.change(A, 0.95, "7.0")
    wanted = PriceQuery(cloud="aws", region="us-east-1", zone=A, instance_type=P4D)

    late = spot.history(wanted, clock.now() - timedelta(hours=0.9), clock.now())
    early = spot.history(wanted, clock.now() - timedelta(hours=1), clock.now())

    assert [change.micros_per_hour for change in late] == [7_000_000]
    assert [change.micros_per_hour for change in early] == [5_000_000, 6_000_000, 7_000_000]


def test_invalid_windows_and_prices_are_skipped(
    market: Market, spot: AwsSpot, clock: FixedClock
) -> None:
    market.change(A, 3, "8.0", product="Linux/UNIX (Amazon VPC)")
    market.change(A, 2, "12.0", product="Windows")
    market.change(B, 1, "0.0")

    quotes = spot.quotes("us-east-1", P4D, clock.now())

    assert [(quote.zone, quote.spot_micros_per_hour) for quote in quotes] == [(A, 8_000_000)]


def test_response_is_cached_for_ten_minutes(
    market: Market, spot: AwsSpot, clock: FixedClock
) -> None:
    market.change(A, 3, "8.0")
    spot.quotes("us-east-1", P4D, clock.now())
    market.change(A, 0, "9.0")

    again = spot.quotes("us-east-1", P4D, clock.now())
    clock.advance(CACHE_TTL.total_seconds())
    later = spot.quotes("us-east-1", P4D, clock.now())

    assert [quote.spot_micros_per_hour for quote in (*again, *later)] == [8_000_000, 9_000_000]


def test_zones_use_the_names_of_the_account(market: Market, spot: AwsSpot) -> None:
    names = spot.zone_names("us-east-1")

    assert len(names) >= 4
    assert {name[:-1] for name in names.values()} == {"us-east-1"}
    assert all(zone_id.startswith("use1-az") for zone_id in names)


CATALOG = """Region,AvailabilityZone,InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice
us-east-1,{id},p4d.24xlarge,A100,8.0,21.96,8.0
us-east-1,use1-azX,p4d.24xlarge,A100,8.0,21.96,2.0
"""


def test_catalog_zone_id_maps_to_the_zone_name_of_the_account(
    market: Market, spot: AwsSpot, clock: FixedClock, tmp_path: Path
) -> None:
    zone_id = next(key for key, name in spot.zone_names("us-east-1").items() if name == B)
    (tmp_path / "aws").mkdir()
    (tmp_path / "aws" / "vms.csv").write_text(CATALOG.format(id=zone_id))
    catalog = Catalog(SkyPilotCatalog([tmp_path]), bundled_snapshot(), spot)
    wanted = PriceQuery(
        cloud="aws", region="us-east-1", zone=B, instance_type=P4D, accelerator="A100", count=8
    )

    from_the_file = catalog.quote(wanted, clock.now())
    market.change(B, 1, "6.5")
    clock.advance(CACHE_TTL.total_seconds())
    live = catalog.quote(wanted, clock.now())

    assert (from_the_file.spot_micros_per_hour, from_the_file.is_estimate) == (8_000_000, False)
    assert from_the_file.tier is QuoteSource.CATALOG
    assert (live.spot_micros_per_hour, live.on_demand_micros_per_hour) == (6_500_000, 21_960_000)
    assert (live.tier, live.is_estimate) == (QuoteSource.LIVE, False)
    assert [c.micros_per_hour for c in catalog.history(wanted, live.as_of, clock.now())] == [
        6_500_000
    ]


def test_price_list_queries_one_node_type_in_one_region(
    market: Market, spot: AwsSpot, clock: FixedClock
) -> None:
    market.change(A, 1, "6.5")
    catalog = Catalog(SkyPilotCatalog([]), bundled_snapshot(), spot)

    for vague in (
        PriceQuery(cloud="aws", region="us-east-1"),
        PriceQuery(cloud="aws", accelerator="A100"),
        PriceQuery(cloud="gcp", region="us-central1", accelerator="A100"),
        PriceQuery(region="us-central1", accelerator="A100"),
    ):
        catalog.find(vague, clock.now())
    unasked = list(market.asked)
    found = catalog.find(PriceQuery(region="us-east-1", accelerator="A100"), clock.now())

    assert unasked == []
    [live] = [quote for quote in found.quotes if quote.tier is QuoteSource.LIVE]
    assert (live.zone, live.accelerator, live.count) == (A, "A100", 8)
    assert (live.spot_micros_per_hour, live.on_demand_micros_per_hour) == (6_500_000, 21_957_642)
    assert len([quote for quote in found.quotes if quote.zone == A]) == 1


def test_missing_credentials_are_logged_once_and_give_no_quotes(
    spot: AwsSpot,
    clock: FixedClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in credentials(""):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    with caplog.at_level(logging.INFO):
        for region in ("us-east-1", "us-west-2"):
            assert spot.quotes(region, P4D, clock.now()) == ()
            assert spot.zone_names(region) == {}

    found = [record for record in caplog.records if "is unavailable" in record.message]
    assert [(record.levelname, record.message) for record in found] == [
        ("INFO", "AWS's spot market is unavailable: this service has no AWS credentials")
    ]


def test_unreachable_aws_is_warned_about_once_and_backed_off(
    market: Market,
    clock: FixedClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    regions: list[str] = []

    def count(region: str) -> Ec2:
        regions.append(region)
        return connect(region)

    spot = AwsSpot(clock, count)
    for _ in range(3):
        assert spot.quotes("us-east-1", P4D, clock.now()) == ()
        clock.advance(60)

    assert regions == ["us-east-1"]
    assert [
        record.levelname for record in caplog.records if "is unavailable" in record.message
    ] == ["WARNING"]


def test_html_page_of_a_proxy_gives_no_price(
    market: Market, spot: AwsSpot, clock: FixedClock, caplog: pytest.LogCaptureFixture
) -> None:
    market.changes.append({"InstanceType": P4D})  # The server itself fails on this page.

    assert spot.quotes("us-east-1", P4D, clock.now()) == ()
    assert "is unavailable" in caplog.text


@pytest.mark.parametrize("region", ["no such region", "evil.example.com/", ""])
def test_invalid_region_raises_aws_unavailable(market: Market, region: str) -> None:
    with pytest.raises(AwsUnavailable):
        list(connect(region).zones())
