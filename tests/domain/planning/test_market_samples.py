"""Sampled markets: they continue what is known of places, and change as recorded ones do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from holdfast.domain.events.planning import PlaceState
from holdfast.domain.planning.beliefs import USUAL_LOSS, USUAL_RETURN
from holdfast.domain.planning.market_samples import sample_markets, spot_share
from holdfast.domain.planning.replay import RecordedMarkets
from support.spot_traces import HOUR_S

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def place_of(**values: Any) -> PlaceState:
    """A usual place with spot nodes."""
    usual = {"name": "zone-a", "region": "a", "spot_usd_per_hour": 1.0, "seen_at": NOW}
    return PlaceState(**{**usual, "is_available": True, **values})


def sampled(*places: PlaceState, ticks: int = 1, runs: int = 2000) -> RecordedMarkets:
    """Markets with ticks of ten minutes."""
    return sample_markets(places, NOW, tick_s=600.0, ticks=ticks, runs=runs, seed=3)


def correlation(first: Any, second: Any) -> float:
    """The correlation of two arrays of flags."""
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


@pytest.mark.parametrize(("is_available", "usual"), [(True, USUAL_LOSS), (False, USUAL_RETURN)])
@pytest.mark.parametrize(("age_h", "age_class"), [(0, 0), (1, 1), (3, 2), (50, 3)])
def test_next_change_has_the_usual_chance_of_its_age(
    *, is_available: bool, usual: tuple[float, ...], age_h: float, age_class: int
) -> None:
    place = place_of(is_available=is_available, age_s=age_h * HOUR_S)

    market = sampled(place, ticks=2, runs=40_000)

    assert (market.available[:, 0, 0] == is_available).all()
    changed = (market.available[:, 0, 1] != is_available).mean()
    assert changed == pytest.approx(usual[age_class], abs=0.006)


def test_multipliers_change_the_chances() -> None:
    usual, restless = (sampled(place_of(loss=loss), ticks=2) for loss in (1.0, 3.0))

    lost = [1 - market.available[:, 0, 1].mean() for market in (usual, restless)]
    assert lost[1] == pytest.approx(3 * lost[0], rel=0.15)


def test_ages_follow_the_states() -> None:
    market = sampled(place_of(age_s=1200.0), ticks=60, runs=50)

    ages = market.beliefs.age_s[:, 0]
    changed = market.available[:, 0, 1:] != market.available[:, 0, :-1]
    assert (ages[:, 0] == 1200.0).all()
    assert (ages[:, 1:] == np.where(changed, 0.0, ages[:, :-1] + 600.0)).all()


def test_long_run_share_is_that_of_unseen_places() -> None:
    place = place_of(is_available=None, seen_at=None, returns=0.5)

    market = sampled(place, ticks=300)

    share = spot_share(place, 600.0)
    assert market.available[:, 0, 0].mean() == pytest.approx(share, abs=0.03)
    assert market.available[:, 0, -1].mean() == pytest.approx(share, abs=0.03)


def test_observation_of_more_than_a_day_ago_says_nothing() -> None:
    old, never = (
        sampled(place_of(is_available=seen_at and True, seen_at=seen_at, age_s=40 * HOUR_S))
        for seen_at in (NOW - timedelta(hours=30), None)
    )

    assert (old.available == never.available).all()


def test_place_changes_from_when_it_was_seen() -> None:
    shares = []
    for unseen_h in (0, 1, 10):
        seen_at = NOW - timedelta(hours=unseen_h)
        market = sampled(place_of(seen_at=seen_at, age_s=unseen_h * HOUR_S))
        shares.append(float(market.available.mean()))

    assert shares[0] == 1.0
    assert shares[0] > shares[1] > shares[2] - 0.05


def test_place_without_spot_nodes_never_has_some() -> None:
    market = sampled(place_of(), place_of(name="b", spot_usd_per_hour=None), ticks=20)

    assert not market.available[:, 1].any()


@pytest.mark.parametrize("tick_s", [60.0, 300.0, 600.0, 1800.0])
def test_zones_of_one_region_change_together(tick_s: float) -> None:
    """As in the recordings of the usual chances: .35 on average, from .12 to .66."""
    places = [place_of(name=name, region=region) for name, region in ("aa", "ba", "cb")]
    hours, seen_from_h = 200, 50
    ticks, first = (int(each * HOUR_S / tick_s) for each in (hours, seen_from_h))

    market = sample_markets(places, NOW, tick_s=tick_s, ticks=ticks, runs=60, seed=3)

    up = market.available[:, :, first:]
    assert 0.28 <= correlation(up[:, 0], up[:, 1]) <= 0.42
    assert abs(correlation(up[:, 0], up[:, 2])) < 0.07


def test_zone_by_itself_changes_as_it_would_alone() -> None:
    alone = sampled(place_of(), ticks=400).available[:, 0]
    beside = sampled(place_of(), place_of(name="b"), ticks=400).available[:, 0]

    assert alone.mean() == pytest.approx(beside.mean(), abs=0.02)
    changes = [(each[:, 1:] != each[:, :-1]).mean() for each in (alone, beside)]
    assert changes[0] == pytest.approx(changes[1], rel=0.05)
