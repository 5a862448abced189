"""Conversion of price list rows to quotes: rejected rows, repaired rows and the reasons."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from holdfast.domain.pricing.price_list import (
    RULES,
    GcpMachine,
    ParsedPriceList,
    PriceRow,
    join_gpus_with_hosts,
    read_rows,
)
from holdfast.domain.pricing.quotes import QuoteSource
from holdfast.rendering import bundled_accelerators
from hypothesis import given
from hypothesis import strategies as st

AS_OF = datetime(2026, 11, 1, tzinfo=UTC)


def row(**fields: str) -> PriceRow:
    """A plausible AWS row, with these values replaced."""
    sound = {
        "cloud": "aws",
        "region": "us-east-1",
        "zone": "use1-az1",
        "instance_type": "p4d.24xlarge",
        "accelerator": "A100",
        "count": "8.0",
        "on_demand": "21.957642",
        "spot": "8.1203",
    }
    return PriceRow(**{**sound, **fields})


def read(*rows: PriceRow) -> ParsedPriceList:
    return read_rows(rows, as_of=AS_OF, source="a list", tier=QuoteSource.CATALOG)


def test_valid_row_is_a_quote_in_micro_dollars() -> None:
    reading = read(row())

    [quote] = reading.quotes
    assert (quote.spot_micros_per_hour, quote.on_demand_micros_per_hour) == (8_120_300, 21_957_642)
    assert (quote.accelerator, quote.count, quote.zone) == ("A100", 8, "use1-az1")
    assert (quote.as_of, quote.source, quote.tier) == (AS_OF, "a list", QuoteSource.CATALOG)
    assert (quote.is_estimate, quote.repairs, reading.rejected) == (False, (), ())


@pytest.mark.parametrize(
    ("rule", "fields", "on_demand", "spot"),
    [
        ("free", {"spot": "0"}, 21_957_642, None),
        ("free", {"on_demand": "-1"}, None, 8_120_300),
        ("placeholder", {"on_demand": "700.0"}, None, 8_120_300),
        ("absurd", {"spot": "inf"}, 21_957_642, None),
        ("spot-like-on-demand", {"on_demand": "30.09784", "spot": "30.0978"}, 30_097_840, None),
        ("spot-like-on-demand", {"on_demand": "27.43298", "spot": "27.433"}, 27_432_980, None),
        ("spot-like-on-demand", {"spot": "21.8535"}, 21_957_642, None),
        ("on-demand-below-spot", {"on_demand": "36.60258", "spot": "41.0128"}, None, 41_012_800),
    ],
)
def test_implausible_price_is_dropped_and_the_other_kept(
    rule: str, fields: dict[str, str], on_demand: int | None, spot: int | None
) -> None:
    [quote] = read(row(**fields)).quotes

    assert (quote.on_demand_micros_per_hour, quote.spot_micros_per_hour) == (on_demand, spot)
    assert quote.repairs == (rule,)


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        ("not-a-number", {"on_demand": "ask us"}),
        ("not-a-number", {"count": "eight"}),
        ("blank", {"on_demand": "", "spot": ""}),
        ("blank", {"on_demand": "nan", "spot": " "}),
        ("free", {"on_demand": "0.0", "spot": "0"}),
        ("placeholder", {"on_demand": "700.0", "spot": ""}),
        ("absurd", {"on_demand": "10001", "spot": ""}),
        ("tpu", {"accelerator": "tpu-v6e-8", "instance_type": ""}),
        ("gpu-without-host", {"cloud": "gcp", "instance_type": ""}),
        ("host-without-gpu", {"cloud": "gcp", "instance_type": "a2-highgpu-8g", "accelerator": ""}),
    ],
)
def test_implausible_row_is_rejected_with_a_reason(rule: str, fields: dict[str, str]) -> None:
    reading = read(row(**fields))

    [refusal] = reading.rejected
    assert (refusal.rule, reading.quotes) == (rule, ())
    assert refusal.reason
    assert refusal.row == row(**fields)


def test_blank_price_is_neither_quoted_nor_repaired() -> None:
    [quote] = read(row(spot="")).quotes

    assert (quote.spot_micros_per_hour, quote.repairs) == (None, ())


def test_plausible_extreme_prices_are_unchanged() -> None:
    for spot in ("2.4655", "20.85"):
        [quote] = read(row(spot=spot)).quotes

        assert (quote.spot_micros_per_hour, quote.repairs) == (round(float(spot) * 1e6), ())


_PRICES = st.one_of(
    st.floats(-1e5, 1e5).map(repr),
    st.sampled_from(["", "0", "nan", "inf", "-inf", "700.0", "x", "1e400", "5e-324"]),
)


@given(st.builds(row, on_demand=_PRICES, spot=_PRICES, cloud=st.sampled_from(["aws", "gcp"])))
def test_quotes_are_never_free_and_each_row_is_accounted_for(
    raw_row: PriceRow,
) -> None:
    reading = read(raw_row)

    assert len(reading.quotes) + len(reading.rejected) == 1
    for quote in reading.quotes:
        spot, full = quote.spot_micros_per_hour, quote.on_demand_micros_per_hour
        assert all(micros is None or micros > 0 for micros in (spot, full))
        assert spot is None or full is None or spot < full or spot <= 1
    assert {item.rule for item in reading.rejected} <= {
        "not-a-number",
        *(rule.name for rule in RULES),
    }


def gpu(name: str, count: str, on_demand: str = "20", spot: str = "8") -> GcpMachine:
    """A GCP row for GPUs alone."""
    fields = {"accelerator": name, "count": count, "on_demand": on_demand, "spot": spot}
    return GcpMachine(row=_gcp(instance_type="", **fields), cpus=0, memory_gib=0)


def host(
    kind: str, on_demand: str, spot: str, cpus: float = 8, memory_gib: float = 30
) -> GcpMachine:
    """A GCP row for a host alone."""
    fields = {"instance_type": kind, "on_demand": on_demand, "spot": spot}
    return GcpMachine(
        row=_gcp(accelerator="", count="", **fields), cpus=cpus, memory_gib=memory_gib
    )


def _gcp(**fields: str) -> PriceRow:
    return row(cloud="gcp", region="us-central1", zone="us-central1-a", **fields)


def test_gpus_and_their_host_are_paid_together() -> None:
    lines = [host("a2-highgpu-8g", "9.38", "6.43"), gpu("A100", "8"), gpu("H100", "8")]

    reading = read(*join_gpus_with_hosts(lines, bundled_accelerators().sizes["gcp"]))

    [quote] = reading.quotes
    assert (quote.instance_type, quote.accelerator, quote.count) == ("a2-highgpu-8g", "A100", 8)
    assert (quote.on_demand_micros_per_hour, quote.spot_micros_per_hour) == (29_380_000, 14_430_000)
    assert [item.rule for item in reading.rejected] == ["gpu-without-host"]


def test_attachable_gpu_takes_the_cheapest_host_that_fits() -> None:
    lines = [
        host("n1-standard-8", "0.38", "0.08", 8, 30),  # Too little memory for SkyPilot.
        host("n1-highmem-8", "0.47", "0.10", 8, 52),
        host("n1-highmem-16", "0.95", "0.20", 16, 104),
        host("n2-standard-32", "0.10", "0.01", 32, 128),  # Carries no GPUs.
        gpu("V100", "1", "2.48", "0.74"),
    ]

    quotes = {
        quote.instance_type: quote
        for quote in read(*join_gpus_with_hosts(lines, bundled_accelerators().sizes["gcp"])).quotes
        if quote.count
    }

    assert set(quotes) == {"n1-highmem-8"}
    assert quotes["n1-highmem-8"].on_demand_micros_per_hour == 2_950_000


def test_a_host_that_is_sold_alone_keeps_its_own_price() -> None:
    lines = [host("n1-highmem-8", "0.47", "0.10", 8, 52), gpu("V100", "1")]

    alone = [
        quote
        for quote in read(*join_gpus_with_hosts(lines, bundled_accelerators().sizes["gcp"])).quotes
        if quote.accelerator is None
    ]

    assert [quote.on_demand_micros_per_hour for quote in alone] == [470_000]


def test_sum_with_a_missing_price_is_missing() -> None:
    lines = [host("a2-highgpu-8g", "9.38", ""), gpu("A100", "8", "20", "8")]

    [quote] = read(*join_gpus_with_hosts(lines, bundled_accelerators().sizes["gcp"])).quotes

    assert (quote.on_demand_micros_per_hour, quote.spot_micros_per_hour) == (29_380_000, None)
