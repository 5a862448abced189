"""Counters of requests: sums over processes, some of which are replaced, and reading of reports."""

from __future__ import annotations

import pytest
from holdfast_worker.protocol.store_usage import MAX_COUNT, NO_USAGE, StoreUsage, UsageTotal


def test_total_adds_up_the_newest_counters_of_all_ranks() -> None:
    total = UsageTotal()
    for rank, puts in [(0, 3), (1, 5), (0, 4), (1, 9)]:
        total.observe(rank, StoreUsage(puts=puts))

    assert total.read() == StoreUsage(puts=13)


def test_total_keeps_what_a_replaced_rank_has_counted() -> None:
    total = UsageTotal()
    for puts in (7, 2, 3):
        total.observe(1, StoreUsage(puts=puts, gets=puts))

    assert total.read() == StoreUsage(puts=10, gets=10)


def test_total_of_a_replaced_rank_0_counts_nothing_twice() -> None:
    total = UsageTotal()
    total.succeed([1, 2])
    for rank, puts in [(0, 1), (1, 50), (2, 60), (0, 2), (1, 51), (2, 63)]:
        total.observe(rank, StoreUsage(puts=puts))

    assert total.read() == StoreUsage(puts=2 + 1 + 3)


@pytest.mark.parametrize("raw", [None, [], "puts", {"puts": -1}, {"puts": True}, {"other": 3}])
def test_counters_that_are_none_are_read_as_zero(raw: object) -> None:
    assert StoreUsage.parse(raw) == NO_USAGE


def test_counters_are_read_as_they_were_written() -> None:
    usage = StoreUsage(puts=1, gets=2, lists=3, deletes=4, uploaded_bytes=5, downloaded_bytes=6)

    assert StoreUsage.parse({**usage.dump(), "newer": 1}) == usage
    assert StoreUsage.parse({"gets": 2**70}).gets == MAX_COUNT
