"""Rank presence: which ranks appear in the logs, by line prefixes, and which are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.diagnostics.hints import LogExcerpt
from holdfast.domain.diagnostics.rank_presence import observed_ranks
from support.events import launched, ready, submitted, training

FACTS = [submitted(), launched(), ready(10), replace(training(11), world_size=6)]


def test_ranks_are_found_in_their_logs_and_banners() -> None:
    printed = [
        LogExcerpt(1, 0, None, "setup\n[RANK 0] WORLD_SIZE=6\n[RANK 1] WORLD_SIZE=6\n"),
        LogExcerpt(1, 1, None, "[rank3]: Traceback (most recent call last):\n"),
        LogExcerpt(1, 2, 4, "step 1\n"),
        LogExcerpt(1, 2, 5, "  \n"),
    ]

    found = observed_ranks(1, FACTS, printed, None)

    assert found.world_size == 6
    assert found.seen == ((0, 0), (1, 0), (3, 1), (4, 2))
    assert found.missing == (2, 5)


@pytest.mark.parametrize(
    ("line", "expected", "size"),
    [
        ("[rank 3/8] averaged vector = [2.5, 2.5]", None, 8),
        ("[RANK 3] WORLD_SIZE=20", 4, 20),
        ("[rank3]: boom", 4, 4),
        ("nothing of it", None, None),
    ],
)
def test_world_size_comes_from_any_available_source(
    line: str, expected: int | None, size: int | None
) -> None:
    found = observed_ranks(2, FACTS, [LogExcerpt(2, 0, None, line)], expected)

    assert found.world_size == size


def test_reported_world_size_overrides_log_lines() -> None:
    assert (
        observed_ranks(1, FACTS, [LogExcerpt(1, 0, None, "[rank 99999999999/3]")], 2).world_size
        == 6
    )
    assert observed_ranks(1, FACTS, [LogExcerpt(1, 0, None, "[rank 99999999999/3]")], 2).seen == ()
