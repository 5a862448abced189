"""The simulated spot market: reproducible for every caller."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import mean

from holdfast.domain.simulation.spot_market import MarketParameters, SpotMarket

ROUGH = MarketParameters(seed=3, provision_s=10, denial_rate=0.3, mtbf_s=1_000, no_notice_rate=0.25)


def test_results_do_not_depend_on_earlier_queries() -> None:
    asked_in_order = SpotMarket(ROUGH, "job-1")
    asked_once = SpotMarket(ROUGH, "job-1")

    offers = [asked_in_order.offer(placement, 0) for placement in range(1, 9)]
    fates = [asked_in_order.lifetime(placement) for placement in range(1, 9)]

    assert asked_once.lifetime(8) == fates[7]
    assert asked_once.offer(8, 0) == offers[7]


def test_different_seed_or_key_has_a_different_market() -> None:
    here = SpotMarket(ROUGH, "job-1").lifetime(1)

    assert SpotMarket(ROUGH, "job-2").lifetime(1) != here
    assert SpotMarket(replace(ROUGH, seed=4), "job-1").lifetime(1) != here


def test_averages_match_the_climate() -> None:
    market = SpotMarket(ROUGH, "job-1")

    offers = [market.offer(placement, 0) for placement in range(1, 2_001)]
    fates = [market.lifetime(placement) for placement in range(1, 2_001)]

    assert abs(mean(offer.denied for offer in offers) - 0.3) < 0.05
    assert all(5 <= offer.wait_s <= 15 for offer in offers)
    assert abs(mean(fate.lifetime_s or 0 for fate in fates) - 1_000) < 100
    assert abs(mean(fate.notice_s == 0 for fate in fates) - 0.25) < 0.05
    assert {fate.notice_s for fate in fates} == {0.0, ROUGH.notice_s}


def test_a_zone_has_one_price_within_a_fifth_of_the_climates() -> None:
    offers = [SpotMarket(ROUGH, f"job-{n}").offer(1, n) for n in range(100)]

    prices = {offer.zone: offer.micros_per_node_hour for offer in offers}

    assert set(prices) == set(ROUGH.zones)
    assert all(offer.micros_per_node_hour == prices[offer.zone] for offer in offers)
    assert all(0.8 <= price / ROUGH.spot_micros <= 1.2 for price in prices.values())


def test_calm_market_reclaims_no_nodes() -> None:
    assert SpotMarket(MarketParameters(), "job-1").lifetime(1).lifetime_s is None
    assert not SpotMarket(MarketParameters(), "job-1").offer(1, 0).denied


def test_task_without_spot_gets_no_denials_at_on_demand_price() -> None:
    rough = MarketParameters(denial_rate=0.9, mtbf_s=1.0, spot_micros=1, on_demand_micros=3_000_000)

    market = SpotMarket(rough.for_task({"resources": {"use_spot": False}}), "job-1")

    assert rough.for_task({}) is rough.for_task({"resources": {"use_spot": True}}) is rough
    assert market.lifetime(1).lifetime_s is None
    offers = [market.offer(1, attempt) for attempt in range(20)]
    assert {(offer.denied, offer.micros_per_node_hour) for offer in offers} == {(False, 3_000_000)}


def test_on_demand_nodes_are_available_and_never_reclaimed() -> None:
    calm = ROUGH.for_task({"resources": {"use_spot": False}})

    offers = [SpotMarket(calm, "job-1").offer(placement, 0) for placement in range(1, 101)]

    assert not any(offer.denied for offer in offers)
    assert {offer.micros_per_node_hour for offer in offers} == {ROUGH.on_demand_micros}
    assert SpotMarket(calm, "job-1").lifetime(1).lifetime_s is None
    assert ROUGH.for_task({"resources": {"use_spot": True}}) == ROUGH


def test_harsher_zone_reclaims_nodes_sooner() -> None:
    climate = replace(ROUGH, zones=("calm", "rough"), zone_hazards=(0.5, 4.0))
    market, noon = SpotMarket(climate, "job-1"), datetime(2026, 3, 1, 12, tzinfo=UTC)

    for placement in range(1, 50):
        steady = SpotMarket(ROUGH, "job-1").lifetime(placement).lifetime_s
        calm = market.lifetime(placement, "calm", noon).lifetime_s
        rough = market.lifetime(placement, "rough", noon).lifetime_s

        assert steady
        assert (calm, rough) == (steady / 0.5, steady / 4.0)
        assert market.lifetime(placement, "elsewhere", noon).lifetime_s == steady


def test_harsher_hours_have_more_reclaims() -> None:
    """In a climate with losses in the afternoon only, all losses are there.

    Their number is unchanged.
    """
    hours = tuple(2.0 if 12 <= hour < 24 else 1e-9 for hour in range(24))
    climate = replace(ROUGH, mtbf_s=30_000, hour_hazards=hours)
    dawn = datetime(2026, 3, 1, 3, 20, tzinfo=UTC)

    fates = [SpotMarket(climate, f"job-{n}").lifetime(1, None, dawn) for n in range(2_000)]

    ends = [dawn + timedelta(seconds=fate.lifetime_s or 0) for fate in fates]
    assert all(end.hour >= 12 for end in ends)
    # A day has as many losses as one of a steady climate: all but exp(-86400/30000).
    survived = [sum(end.day > day for end in ends) / len(ends) for day in (1, 2)]
    assert abs(survived[0] - 0.056) < 0.03
    assert survived[1] < survived[0]


def test_uniform_hours_change_no_reclaim() -> None:
    market, when = (
        SpotMarket(replace(ROUGH, hour_hazards=(1.0,) * 24), "job-1"),
        datetime(2026, 3, 1, 23, 59, 30, tzinfo=UTC),
    )

    for placement in range(1, 50):
        steady = SpotMarket(ROUGH, "job-1").lifetime(placement).lifetime_s

        assert steady
        assert abs((market.lifetime(placement, None, when).lifetime_s or 0) - steady) < 1e-6


def test_each_lost_node_has_an_answer_and_a_lifetime_of_its_own() -> None:
    market = SpotMarket(ROUGH, "job-1")

    waits = {market.offer(1, 0, replacements=number).wait_s for number in range(4)}
    lifetimes = {market.lifetime(1, replacements=number).lifetime_s for number in range(4)}

    assert len(waits) == len(lifetimes) == 4
    assert market.offer(1, 0, replacements=0) == market.offer(1, 0)
