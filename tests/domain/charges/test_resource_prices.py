"""Lists of prices of storage, requests, egress and disks: which price applies, and refused lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from holdfast.domain.charges.resource_prices import DiskPrice, ResourcePrices
from holdfast.errors import BadRequest
from holdfast.pricing.catalog import bundled_resource_prices, open_resource_prices

PRICES = ResourcePrices.parse(
    {
        "as_of": "2026-01",
        "source": "a contract",
        "storage": {"aws": 0.03, "aws/us-east-1": 0.023, "gcp/us-*": "0.02"},
        "requests": {"aws/us-east-1": {"put": 0.005, "get": 0.0004}},
        "egress": {
            "aws/us-east-1": {"aws": 0.02, "aws/us-east-2": 0.01, "*": 0.09},
            "aws": {"gcp/us-*": 0.07},
        },
        "disks": {
            "aws/us-east-1, aws/us-east-2": {"medium": {"gib": 0.08, "disk": 6}, "low": 0.05}
        },
        "stores": {"gs://team": "gcp/us-central1", "gs://team-eu": "gcp/europe-west1"},
    },
    "prices.yaml",
)


@pytest.mark.parametrize(
    ("place", "micros"),
    [
        ("aws/us-east-1", 23_000),
        ("aws/us-west-2", 30_000),
        ("aws", 30_000),
        ("gcp/us-central1", 20_000),
        ("gcp/europe-west1", None),
        ("awsome/us-east-1", None),
        ("files", 0),
        ("own", 0),
        ("", None),
    ],
)
def test_price_of_the_longest_name_applies(place: str, micros: int | None) -> None:
    assert PRICES.storage_micros(place) == micros


@pytest.mark.parametrize(
    ("source", "target", "micros"),
    [
        ("aws/us-east-1", "aws/us-east-1", 0),
        ("aws/us-east-1", "aws/us-east-2", 10_000),
        ("aws/us-east-1", "aws/us-west-2", 20_000),
        ("aws/us-east-1", "gcp/us-central1", 90_000),
        ("aws/us-west-2", "gcp/us-central1", 70_000),
        ("aws/us-west-2", "azure/eastus", None),
        ("aws/us-east-1", "aws", None),  # It may be the same region.
        ("aws/us-east-1", "gcp", 90_000),
        ("own", "aws/us-east-1", 0),
        ("aws/us-east-1", "own", 0),
        ("aws/us-east-1", "files", 0),
        ("aws/us-east-1", "elsewhere", 90_000),
        ("elsewhere", "aws/us-east-1", 0),
        ("gcp/us-central1", "own", 0),
        ("own", "own", 0),
        ("", "aws/us-east-1", None),
    ],
)
def test_egress_depends_on_both_ends(source: str, target: str, micros: int | None) -> None:
    assert PRICES.egress_micros(source, target) == micros


def test_requests_and_disks_have_prices_by_kind() -> None:
    assert PRICES.request_micros("aws/us-east-1", "get") == 400
    assert PRICES.request_micros("aws/us-east-1", "list") is None
    assert PRICES.request_micros("own", "list") == 0
    assert PRICES.disk_price("aws/us-east-2", "medium") == DiskPrice(80_000, 6_000_000)
    assert PRICES.disk_price("aws/us-east-2", "ultra") is None


def test_longest_beginning_of_a_url_names_the_place() -> None:
    assert PRICES.store_place("gs://team-eu/runs") == "gcp/europe-west1"
    assert PRICES.store_place("gs://team/runs") == "gcp/us-central1"
    assert PRICES.store_place("gs://other") is None


def test_own_prices_come_before_the_bundled_ones() -> None:
    own = ResourcePrices.parse(
        {"storage": {"aws/us-east-1": 0.01}, "egress": {"aws/us-east-1": {"aws": 0}}}, "own.yaml"
    )

    merged = PRICES.with_own(own)

    assert merged.storage_micros("aws/us-east-1") == 10_000
    assert merged.storage_micros("aws/us-west-2") == 30_000
    assert merged.egress_micros("aws/us-east-1", "aws/us-west-2") == 0
    assert merged.egress_micros("aws/us-east-1", "azure/eastus") == 90_000
    assert merged.source == "own.yaml (unknown), then a contract"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "own.yaml: is not a list of prices; write keys such as storage"),
        ({"storrage": {}}, "own.yaml: storrage is unknown"),
        ({"storage": 3}, "own.yaml: storage: is not a mapping"),
        ({"storage": {"aws": -1}}, "own.yaml: storage: aws: -1 is not a price from 0 to 10000"),
        ({"storage": {"aws": "free"}}, "own.yaml: storage: aws: 'free' is not a price"),
        ({"storage": {"aws": True}}, "own.yaml: storage: aws: True is not a price"),
        ({"storage": {"aws": float("nan")}}, "own.yaml: storage: aws: nan is not a price"),
        ({"storage": {"aws": 0.0000001}}, "is more exact than a millionth of a dollar; round it"),
        ({"requests": {"aws": {"head": 1}}}, "own.yaml: requests: aws: head is unknown"),
        ({"disks": {"aws": {"low": {"gb": 1}}}}, "own.yaml: disks: aws: low: gb is unknown"),
        ({"egress": {"aws": 0.02}}, "own.yaml: egress: aws: is not a mapping"),
    ],
)
def test_invalid_list_is_refused_with_the_place(raw: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=r".") as refused:
        ResourcePrices.parse(raw, "own.yaml")

    assert message in refused.value.detail


def test_bundled_list_has_source_date_and_three_clouds() -> None:
    bundled = bundled_resource_prices()

    assert bundled.as_of
    assert "aws.amazon.com" in bundled.source
    for place in ("aws/us-east-1", "gcp/us-central1", "azure/eastus"):
        assert bundled.storage_micros(place)
        assert bundled.request_micros(place, "put") == 5000
        assert bundled.request_micros(place, "delete") == 0
        assert bundled.disk_price(place, "medium")
        assert bundled.egress_micros(place, "elsewhere")
    assert bundled.storage_micros("aws/us-east-1") == 23_000
    assert bundled.egress_micros("aws/us-east-1", "aws/eu-west-1") == 20_000
    assert bundled.egress_micros("gcp/us-east1", "gcp/europe-west4") == 50_000


def test_file_of_ones_own_comes_before_the_bundled_list(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("storage: {aws/us-east-1: 0.0175, own: 0.004}\n")

    prices = open_resource_prices(file)

    assert prices.storage_micros("aws/us-east-1") == 17_500
    assert prices.storage_micros("own") == 4000
    assert prices.storage_micros("gcp/us-east1") == 20_000
    assert open_resource_prices(None) is bundled_resource_prices()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory; correct the path"),
        ("storage: [", "is not YAML"),
        ("storage: {aws: cheap}", "storage: aws: 'cheap' is not a price"),
    ],
)
def test_invalid_file_is_named_with_its_setting(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "prices.yaml"
    if content is not None:
        file.write_text(content)

    with pytest.raises(BadRequest) as refused:
        open_resource_prices(file)

    assert refused.value.detail.startswith(f"HOLDFAST_RESOURCE_PRICES={file}: ")
    assert message in refused.value.detail
