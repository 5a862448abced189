"""Parsing of the stall limit."""

from __future__ import annotations

import pytest
from holdfast_worker.config import Config
from holdfast_worker.protocol.policies import MaxStall, StallDetection
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", MaxStall(StallDetection.AUTO, 0)),
        (" Off ", MaxStall(StallDetection.OFF, 0)),
        ("90s", MaxStall(StallDetection.SECONDS, 90)),
        ("20 m", MaxStall(StallDetection.SECONDS, 1200)),
        ("2H", MaxStall(StallDetection.SECONDS, 7200)),
    ],
)
def test_valid_limit_is_parsed(text: str, expected: MaxStall) -> None:
    assert MaxStall.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "0s", "-5m", "1.5h", "on", "5", "5 days", "1h 30m", "seconds"]
)
def test_invalid_value_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a stall limit: write auto, off, or a dur"):
        MaxStall.parse(text)


@given(st.integers(1, 10**6), st.sampled_from(["s", "m", "h"]))
def test_every_whole_duration_is_seconds(amount: int, unit: str) -> None:
    seconds = amount * {"s": 1, "m": 60, "h": 3600}[unit]

    assert MaxStall.parse(f"{amount}{unit}") == MaxStall(StallDetection.SECONDS, seconds)


def test_unset_limit_defaults_to_auto() -> None:
    assert Config.read({}).max_stall == MaxStall(StallDetection.AUTO, 0)
    assert Config.read({"HOLDFAST_MAX_STALL": ""}).max_stall == MaxStall(StallDetection.AUTO, 0)


def test_invalid_limit_is_named() -> None:
    with pytest.raises(ValueError, match=r"^HOLDFAST_MAX_STALL: 'soon' is not a stall limit"):
        Config.read({"HOLDFAST_MAX_STALL": "soon"})
