"""Prices over a time range, weighted by duration."""

from __future__ import annotations

from holdfast.domain.pricing.price_history import PriceRange, price_range
from holdfast.domain.pricing.quotes import PricePoint
from support.events import at


def test_prices_are_weighted_by_duration() -> None:
    changes = [
        PricePoint(at=at(0), micros_per_hour=100),
        PricePoint(at=at(30), micros_per_hour=200),
    ]

    assert price_range(changes, at(0), at(40)) == PriceRange(100, 125, 200)


def test_earlier_price_counts_only_while_effective_in_the_range() -> None:
    changes = [
        PricePoint(at=at(-500), micros_per_hour=900),
        PricePoint(at=at(-100), micros_per_hour=100),
        PricePoint(at=at(30), micros_per_hour=200),
        PricePoint(at=at(90), micros_per_hour=1),
    ]

    assert price_range(changes, at(0), at(60)) == PriceRange(100, 150, 200)


def test_price_range_without_earlier_prices_is_none() -> None:
    assert price_range([], at(0), at(60)) is None
    assert price_range([PricePoint(at=at(60), micros_per_hour=5)], at(0), at(60)) is None
