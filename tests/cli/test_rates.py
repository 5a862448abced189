"""Rates and expected ends as text."""

from __future__ import annotations

from datetime import timedelta

import pytest
from holdfast.api.schemas.throughput import EtaOut, RatesOut
from holdfast.cli.metrics import ends_in, step_parts
from holdfast.clock import SystemClock
from holdfast.domain.throughput.eta import NO_TOTAL


@pytest.mark.parametrize(
    ("minutes", "text"),
    [
        ((4, 5, 7), "5.0 m (4.0-7.0 m)"),
        ((55, 65, 80), "65 m (55-80 m)"),
        ((110, 120, 180), "2.0 h (1.8-3.0 h)"),
        ((2800, 2880, 4320), "2.0 d (1.9-3.0 d)"),
    ],
)
def test_time_to_the_end_has_one_unit(minutes: tuple[int, int, int], text: str) -> None:
    now = SystemClock().now() + timedelta(seconds=1)
    p10, p50, p90 = (now + timedelta(minutes=each) for each in minutes)

    assert ends_in(EtaOut(p10=p10, p50=p50, p90=p90)) == text


def test_nothing_is_shown_without_an_end_or_parts() -> None:
    assert ends_in(None) == ends_in(EtaOut(reason=NO_TOTAL)) == ""
    assert step_parts(RatesOut(steps_per_s=2.0)) == ""
