"""Price lists of the service: SkyPilot's catalog of three clouds, and the bundled snapshot."""

from __future__ import annotations

import io
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from holdfast.domain.pricing.quotes import PriceQuery, Quote, QuoteSource
from holdfast.pricing import open_catalog
from holdfast.pricing.catalog import bundled_snapshot, read_snapshot
from support.fakes import FixedClock

FILES = {
    "aws": """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
p4d.24xlarge,A100,8.0,96.0,1152.0,"{'Gpus': []}",20.0,7.0,us-east-1,use1-az1,x86_64
p4d.24xlarge,A100,8.0,96.0,1152.0,"{'Gpus': []}",20.0,20.0,us-east-1,use1-az3,x86_64
m6i.large,,,2.0,8.0,,0.096,0.0384,us-east-1,use1-az1,x86_64
""",
    "azure": """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,Generation
Standard_NC24ads_A100_v4,A100-80GB,1.0,24.0,220.0,x,3.673,0.679,eastus,V2
Standard_ND96isr_H100_v5,H100,8.0,96.0,1900.0,x,0.0,0.0,eastus,V2
""",
    "gcp": """SpotPrice,Price,Region,AvailabilityZone,InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo
1.0,3.0,us-central1,us-central1-a,a2-highgpu-8g,96.0,680.0,,,
13.0,26.0,us-central1,us-central1-a,,,,A100,8,x
13.0,26.0,us-central1,us-central1-f,,,,A100,8,x
700.0,700.0,us-central1,us-central1-a,,,,tpu-v6e-8,1,x
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """SkyPilot's catalog."""
    for cloud, text in FILES.items():
        (tmp_path / "v8" / cloud).mkdir(parents=True)
        (tmp_path / "v8" / cloud / "vms.csv").write_text(text)
    return tmp_path / "v8"


def quote_for(folder: Path, clock: FixedClock, **fields: object) -> Quote:
    catalog = open_catalog([folder / "nowhere", folder], clock, asks_aws=False)
    return catalog.quote(PriceQuery(**fields), clock.now())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "spot", "on_demand"),
    [
        (
            {"cloud": "aws", "region": "us-east-1", "zone": "use1-az1", "accelerator": "A100"},
            7_000_000,
            20_000_000,
        ),
        (
            {
                "cloud": "gcp",
                "region": "us-central1",
                "zone": "us-central1-a",
                "accelerator": "a100",
            },
            14_000_000,
            29_000_000,
        ),
    ],
)
def test_a_catalog_is_read_by_its_headers(
    folder: Path, clock: FixedClock, fields: dict[str, str], spot: int, on_demand: int
) -> None:
    quote = quote_for(folder, clock, **fields, count=8)

    assert (quote.spot_micros_per_hour, quote.on_demand_micros_per_hour) == (spot, on_demand)
    assert (quote.tier, quote.is_estimate) == (QuoteSource.CATALOG, False)
    assert quote.source == f"SkyPilot catalog v8 {fields['cloud']}/vms.csv"


def test_azure_has_one_price_for_all_zones_of_a_region(folder: Path, clock: FixedClock) -> None:
    fields = {"cloud": "azure", "region": "eastus", "zone": "eastus-2"}

    quote = quote_for(folder, clock, **fields, accelerator="A100-80GB", count=1)

    assert (quote.spot_micros_per_hour, quote.is_estimate) == (679_000, False)


def test_a_node_without_accelerators_is_found_by_its_type(folder: Path, clock: FixedClock) -> None:
    fields = {"cloud": "aws", "region": "us-east-1", "zone": "use1-az1"}

    quote = quote_for(folder, clock, **fields, instance_type="m6i.large")

    assert (quote.spot_micros_per_hour, quote.on_demand_micros_per_hour) == (38_400, 96_000)


def test_price_date_is_file_mtime_and_changed_file_is_reread(
    folder: Path, clock: FixedClock
) -> None:
    catalog = open_catalog([folder], clock, asks_aws=False)
    wanted = PriceQuery(
        cloud="aws", region="us-east-1", zone="use1-az1", accelerator="A100", count=8
    )
    file = folder / "aws" / "vms.csv"
    os.utime(file, (1_790_000_000, 1_790_000_000))
    old = catalog.quote(wanted, clock.now())
    file.write_text(FILES["aws"].replace("7.0", "6.0"))
    os.utime(file, (1_790_090_000, 1_790_090_000))

    new = catalog.quote(wanted, clock.now())

    assert old.as_of == datetime.fromtimestamp(1_790_000_000, UTC)
    assert (new.as_of - old.as_of, new.spot_micros_per_hour) == (timedelta(hours=25), 6_000_000)


@pytest.mark.parametrize("text", ["", "A,B\n1,2\n", "\xff\xfe", 'InstanceType,Price,Region\n"'])
def test_invalid_price_list_falls_back_to_the_snapshot(
    folder: Path, clock: FixedClock, text: str
) -> None:
    (folder / "aws" / "vms.csv").write_bytes(text.encode("latin-1"))

    quote = quote_for(folder, clock, cloud="aws", region="us-east-1", accelerator="A100", count=8)

    assert quote.tier is QuoteSource.SNAPSHOT


def test_path_traversal_in_cloud_name_is_ignored(folder: Path, clock: FixedClock) -> None:
    quote = quote_for(folder / "aws", clock, cloud="../aws", instance_type="p4d.24xlarge")

    assert quote.tier is QuoteSource.ESTIMATE


def test_price_list_has_one_price_a_zone_and_reports_bad_rows(
    folder: Path, clock: FixedClock
) -> None:
    catalog = open_catalog([folder], clock, asks_aws=False)

    found = catalog.find(PriceQuery(cloud="gcp", accelerator="A100"), clock.now())

    places = [(quote.zone, quote.count) for quote in found.quotes]
    assert len(places) == len(set(places))
    [here] = [quote for quote in found.quotes if quote.zone == "us-central1-a"]
    assert (here.tier, here.spot_micros_per_hour) == (QuoteSource.CATALOG, 14_000_000)
    assert [(item.rule, item.row.zone) for item in found.refused] == [
        ("gpu-without-host", "us-central1-f")
    ]


def test_catalog_without_live_prices_has_no_history(folder: Path, clock: FixedClock) -> None:
    catalog = open_catalog([folder], clock, asks_aws=False)

    assert catalog.history(PriceQuery(cloud="aws"), clock.now(), clock.now()) == ()


def test_snapshot_is_dated_and_covers_common_accelerators() -> None:
    quotes = bundled_snapshot().quotes

    known = {(quote.cloud, quote.accelerator) for quote in quotes}
    assert known >= {
        ("aws", "A100"),
        ("aws", "A100-80GB"),
        ("aws", "H100"),
        ("aws", "H200"),
        ("aws", "V100"),
        ("gcp", "A100"),
        ("gcp", "A100-80GB"),
        ("gcp", "H100"),
    }
    assert all(quote.source.startswith("snapshot: ") for quote in quotes)
    assert all(datetime(2023, 1, 1, tzinfo=UTC) < quote.as_of for quote in quotes)


def test_implausible_snapshot_rows_are_rejected_or_repaired() -> None:
    reading = bundled_snapshot()

    assert {item.rule for item in reading.rejected} == {"gpu-without-host"}
    assert {item.row.accelerator for item in reading.rejected} == {"H200", "L4"}
    repairs = [rule for quote in reading.quotes for rule in quote.repairs]
    assert repairs.count("spot-like-on-demand") == 19
    closed = [q for q in reading.quotes if q.instance_type == "p4d.24xlarge" and q.repairs]
    assert len(closed) == 9


def test_snapshot_dates_are_kept_per_cloud() -> None:
    text = (
        "cloud,region,zone,instance_type,accelerator,count,on_demand_usd_per_hour,spot_usd_per_hour,as_of,source\n"
        "aws,r,z,a.b,A100,8,20,8,2026-11-02,x\n"
        "aws,r,z,a.b,A100,8,20,9,2026-11-01,x\n"
    )

    quotes = read_snapshot(io.StringIO(text)).quotes

    assert [(quote.as_of.day, quote.spot_micros_per_hour) for quote in quotes] == [
        (1, 9_000_000),
        (2, 8_000_000),
    ]
