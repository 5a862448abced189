"""The choice among several prices, and the estimate without any."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from holdfast.domain.pricing.estimates import (
    ACCELERATOR_MICROS,
    ACCELERATORS_BY_PRICE,
    NODE_MICROS,
    resolve,
)
from holdfast.domain.pricing.quotes import (
    PricePoint,
    PriceQuery,
    Quote,
    QuoteSource,
    choose_quote,
    current_first,
    price_at,
    price_points_within,
    without_old,
)
from holdfast.pricing.catalog import bundled_snapshot
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 11, 20, tzinfo=UTC)
P4D = Quote(
    cloud="aws",
    region="us-east-1",
    zone="us-east-1a",
    instance_type="p4d.24xlarge",
    accelerator="A100",
    count=8,
    on_demand_micros_per_hour=22_000_000,
    spot_micros_per_hour=8_000_000,
    as_of=NOW,
    source="list",
    tier=QuoteSource.CATALOG,
)
WANTED = PriceQuery(
    cloud="aws",
    region="us-east-1",
    zone="us-east-1a",
    instance_type="p4d.24xlarge",
    accelerator="A100",
    count=8,
)


def chosen(*quotes: Quote, wanted: PriceQuery = WANTED) -> Quote:
    found = choose_quote(quotes, wanted)
    assert found is not None
    return found


def test_zone_price_precedes_region_price() -> None:
    other = replace(P4D, zone="us-east-1b", spot_micros_per_hour=9_000_000)
    whole = replace(P4D, zone=None, spot_micros_per_hour=10_000_000)

    assert chosen(other, whole, P4D) == P4D
    assert chosen(other, whole) == whole


def test_region_query_uses_its_dearest_zone_and_is_marked() -> None:
    zones = [
        replace(P4D, zone=f"use1-az{n}", spot_micros_per_hour=n * 1_000_000) for n in (2, 8, 5)
    ]

    found = chosen(*zones)

    assert (found.spot_micros_per_hour, found.zone, found.is_estimate) == (8_000_000, None, True)
    assert found.source == "list: the highest of us-east-1"


def test_agreeing_zones_give_the_price_of_unlisted_zones() -> None:
    zones = [replace(P4D, zone=f"use1-az{n}") for n in (1, 2)]

    assert not chosen(*zones).is_estimate
    assert chosen(zones[0]).is_estimate


def test_on_demand_price_of_one_zone_applies_to_all() -> None:
    found = chosen(replace(P4D, zone="use1-az1"), wanted=replace(WANTED, is_spot=False))

    assert (found.on_demand_micros_per_hour, found.is_estimate) == (22_000_000, False)


def test_live_beats_catalog_and_catalog_beats_snapshot() -> None:
    tiers = [
        replace(P4D, tier=tier, source=tier) for tier in (QuoteSource.SNAPSHOT, QuoteSource.CATALOG)
    ]
    live = replace(P4D, tier=QuoteSource.LIVE, source="live", on_demand_micros_per_hour=None)

    assert chosen(*tiers).source == "catalog"
    assert chosen(*tiers, live).source == "live"
    assert chosen(*tiers, live).on_demand_micros_per_hour == 22_000_000


def test_current_region_price_precedes_outdated_zone_price() -> None:
    old = replace(P4D, tier=QuoteSource.SNAPSHOT, as_of=NOW - timedelta(days=400))
    new = replace(P4D, zone="us-east-1b", spot_micros_per_hour=9_000_000)

    assert chosen(old, new).spot_micros_per_hour == 9_000_000


def test_newer_beats_older() -> None:
    old = replace(P4D, as_of=NOW - timedelta(days=1), spot_micros_per_hour=9_000_000)

    assert chosen(old, P4D) == chosen(P4D, old) == P4D


def test_quotes_of_other_regions_or_nodes_are_ignored() -> None:
    other_region = replace(P4D, region="eu-north-1")
    bigger = replace(P4D, instance_type="p4de.24xlarge", accelerator="A100-80GB")

    assert choose_quote([other_region, bigger], WANTED) is None


def test_host_without_the_wanted_gpus_does_not_match() -> None:
    host = replace(
        P4D, cloud="gcp", instance_type="n1-highmem-8", accelerator=None, count=0, zone="z"
    )
    wanted = PriceQuery(
        cloud="gcp",
        region="us-east-1",
        zone="z",
        instance_type="n1-highmem-8",
        accelerator="V100",
        count=1,
    )

    assert choose_quote([host], wanted) is None
    assert choose_quote([replace(host, accelerator="V100", count=1)], wanted)


def test_spot_without_a_market_costs_the_on_demand_price() -> None:
    closed = replace(P4D, spot_micros_per_hour=None)
    other_zone = replace(P4D, zone="us-east-1b", spot_micros_per_hour=2_000_000)

    found = resolve([closed, other_zone], WANTED, NOW)

    assert (found.spot_micros_per_hour, found.is_estimate) == (22_000_000, True)
    assert found.source.startswith("estimate: no spot price is known")


def test_unknown_node_gets_the_highest_price_of_its_accelerator() -> None:
    azure = replace(
        WANTED, cloud="azure", region="eastus", zone=None, instance_type="Standard_ND96"
    )
    other_region = replace(P4D, region="eu-north-1", on_demand_micros_per_hour=24_000_000)

    found = resolve([P4D, other_region], azure, NOW)

    assert (found.spot_micros_per_hour, found.on_demand_micros_per_hour) == (24_000_000, None)
    assert found.source == "estimate: the most expensive of its kind, in aws/eu-north-1 (list)"
    assert (found.tier, found.is_estimate, found.cloud) == (QuoteSource.ESTIMATE, True, "azure")


def test_another_number_of_accelerators_costs_in_proportion() -> None:
    found = resolve([P4D], replace(WANTED, instance_type="x", count=3), NOW)

    assert found.spot_micros_per_hour == 8_250_000


def test_unlisted_accelerator_gets_price_of_next_stronger_one() -> None:
    found = resolve([P4D], PriceQuery(cloud="gcp", accelerator="T4", count=2), NOW)

    assert found.spot_micros_per_hour == 5_500_000
    assert "2 times the most expensive A100" in found.source


def test_completely_unknown_resource_gets_a_high_price() -> None:
    strange = resolve([P4D], PriceQuery(cloud="aws", accelerator="B300", count=8), NOW)
    nothing = resolve([], PriceQuery(is_spot=False), NOW)

    assert strange.spot_micros_per_hour == 8 * ACCELERATOR_MICROS
    assert nothing.on_demand_micros_per_hour == NODE_MICROS
    assert strange.as_of == nothing.as_of == NOW


def test_accelerator_price_order_matches_the_snapshot() -> None:
    """Otherwise the substitute for an unknown accelerator could be cheaper than the accelerator."""
    dearest: dict[str, float] = {}
    for quote in bundled_snapshot().quotes:
        if quote.accelerator in ACCELERATORS_BY_PRICE and quote.on_demand_micros_per_hour:
            each = quote.on_demand_micros_per_hour / quote.count
            dearest[quote.accelerator] = max(dearest.get(quote.accelerator, 0), each)
    known = [dearest[name] for name in ACCELERATORS_BY_PRICE if name in dearest]

    assert len(known) >= 4
    assert max(known) < ACCELERATOR_MICROS


CHANGES = [PricePoint(at=NOW + timedelta(hours=h), micros_per_hour=h + 10) for h in (3, -5, -1, 1)]


def test_price_at_a_time_is_the_last_change_before() -> None:
    assert price_at(CHANGES, NOW) == CHANGES[2]
    assert price_at(CHANGES, NOW + timedelta(hours=1)) == CHANGES[3]
    assert price_at(CHANGES, NOW - timedelta(hours=6)) is None


def test_range_begins_with_the_price_in_effect() -> None:
    result = price_points_within(CHANGES, NOW, NOW + timedelta(hours=2))

    assert result == (CHANGES[2], CHANGES[3])


_WORDS = {
    "cloud": st.sampled_from([None, "aws", "gcp", "azure", "lambda"]),
    "region": st.sampled_from([None, "us-east-1", "us-central1", "nowhere"]),
    "zone": st.sampled_from([None, "us-east-1a", "use1-az1", "us-central1-a"]),
    "instance_type": st.sampled_from([None, "p4d.24xlarge", "p5.48xlarge", "m6i.large", "x"]),
    "accelerator": st.sampled_from([None, "A100", "a100-80gb", "H200", "T4", "B300"]),
    "count": st.sampled_from([0, 0.5, 1, 3, 8]),
    "is_spot": st.booleans(),
}


@given(st.builds(PriceQuery, **_WORDS))
def test_every_query_has_a_price_and_foreign_ones_are_marked(
    wanted: PriceQuery,
) -> None:
    quotes = bundled_snapshot().quotes

    found = resolve(quotes, wanted, NOW)

    price = found.micros_per_hour(is_spot=wanted.is_spot)
    assert price is not None
    assert price > 0
    assert found.source
    assert found.as_of.tzinfo
    collected = [
        quote
        for quote in quotes
        if wanted.region and wanted.matches_location(quote) and wanted.matches_node(quote)
        if quote.micros_per_hour(is_spot=wanted.is_spot) == price
    ]
    assert collected or found.is_estimate


@pytest.mark.parametrize("micros", [0, -1])
def test_free_quote_is_invalid(micros: int) -> None:
    with pytest.raises(AssertionError):
        replace(P4D, spot_micros_per_hour=micros)


def test_old_price_is_listed_after_all_others() -> None:
    cheap_of_2023 = replace(P4D, as_of=datetime(2023, 4, 1, tzinfo=UTC), spot_micros_per_hour=1)
    edge = replace(P4D, as_of=NOW - timedelta(days=90), spot_micros_per_hour=2)

    listed = current_first([cheap_of_2023, edge, P4D], NOW)

    assert listed == (edge, P4D, cheap_of_2023)
    assert [quote.is_old(NOW) for quote in listed] == [False, False, True]


def test_current_quotes_leave_out_old_ones_unless_all_are_old() -> None:
    of_2023 = replace(P4D, as_of=datetime(2023, 4, 1, tzinfo=UTC))

    assert without_old([of_2023, P4D], NOW) == (P4D,)
    assert without_old([of_2023], NOW) == (of_2023,)
