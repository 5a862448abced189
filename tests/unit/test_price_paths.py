"""What a price was over a time."""

from __future__ import annotations

from histories import at
from holdfast.domain.pricing.price_history import Range, range_of
from holdfast.domain.pricing.quotes import Change


def test_a_price_weighs_as_long_as_it_held() -> None:
    changes = [Change(at=at(0), micros_per_hour=100), Change(at=at(30), micros_per_hour=200)]

    assert range_of(changes, at(0), at(40)) == Range(100, 125, 200)


def test_what_was_before_counts_only_for_what_it_held_in_the_time() -> None:
    changes = [
        Change(at=at(-500), micros_per_hour=900),
        Change(at=at(-100), micros_per_hour=100),
        Change(at=at(30), micros_per_hour=200),
        Change(at=at(90), micros_per_hour=1),
    ]

    assert range_of(changes, at(0), at(60)) == Range(100, 150, 200)


def test_of_what_nobody_tells_nothing_is_said() -> None:
    assert range_of([], at(0), at(60)) is None
    assert range_of([Change(at=at(60), micros_per_hour=5)], at(0), at(60)) is None
