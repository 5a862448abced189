"""Rules over tables."""

from __future__ import annotations

import pytest
from support.tables import for_each


def test_failure_lists_every_row_that_breaks_the_rule() -> None:
    @for_each(["a", "bb", "c"], name=lambda row: f"row {row}")
    def rule(row: str) -> None:
        assert len(row) > 1, "too short"

    with pytest.raises(AssertionError) as broken:
        rule()

    named = [line for line in str(broken.value).splitlines() if line.startswith("row")]
    assert named == ["row a: AssertionError: too short", "row c: AssertionError: too short"]
