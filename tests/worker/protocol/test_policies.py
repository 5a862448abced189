"""Parsing of checkpoint intervals."""

from __future__ import annotations

import pytest
from holdfast_worker.protocol.policies import Cadence, CadenceUnit
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "rhythm", "amount"),
    [
        ("auto", CadenceUnit.AUTO, 0),
        (" Auto ", CadenceUnit.AUTO, 0),
        ("90s", CadenceUnit.SECONDS, 90),
        ("15m", CadenceUnit.SECONDS, 900),
        ("2h", CadenceUnit.SECONDS, 7200),
        ("2 H", CadenceUnit.SECONDS, 7200),
        ("500 steps", CadenceUnit.STEPS, 500),
        ("1 step", CadenceUnit.STEPS, 1),
        ("1steps", CadenceUnit.STEPS, 1),
    ],
)
def test_valid_cadence_is_parsed(text: str, rhythm: CadenceUnit, amount: int) -> None:
    assert Cadence.parse(text) == Cadence(rhythm, amount)


@pytest.mark.parametrize("text", ["", "0s", "0 steps", "-5m", "1.5h", "often", "5", "5 days", "m"])
def test_invalid_value_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a cadence: write auto, a duration such as 90s"):
        Cadence.parse(text)


@given(st.integers(1, 10**6), st.sampled_from(["s", "m", "h"]))
def test_every_whole_duration_is_seconds(amount: int, unit: str) -> None:
    seconds = amount * {"s": 1, "m": 60, "h": 3600}[unit]

    assert Cadence.parse(f"{amount}{unit}") == Cadence(CadenceUnit.SECONDS, seconds)
