"""What people read: money, durations and sizes in the unit that fits."""

from __future__ import annotations

import pytest
from holdfast.cli.output import money, size, span, steps


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "$0.0000"),
        (16_900, "$0.0169"),
        (1_500_000, "$1.50"),
        (1_234_567_890, "$1,234.57"),
        (-50_000, "-$0.0500"),
    ],
)
def test_money(micros: int, text: str) -> None:
    assert money(micros) == text
    assert money(micros, simulated=True) == f"~{text}"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.0 s"),
        (59_900, "59.9 s"),
        (61_000, "1 m 01 s"),
        (3_600_000, "1 h 00 m"),
        (90_061_000, "25 h 01 m"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert span(ms) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 B"), (1_500, "1.5 kB"), (2 * 10**12, "2.0 TB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_steps_with_and_without_an_end() -> None:
    assert (steps(1200, 5000), steps(1200, None)) == ("1,200/5,000", "1,200")
