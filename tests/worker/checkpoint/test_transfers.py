"""The number of concurrent transfers."""

from __future__ import annotations

import os
import threading
import time

from holdfast_worker.checkpoint.transfers import INITIAL_READS_PER_CORE, TransferPool, read_pool


def _most_at_once(lanes: TransferPool, count: int, together: int = 1) -> int:
    """The most concurrent of `count` transfers; each waits for `together` transfers in flight."""
    lock, barrier = threading.Lock(), threading.Barrier(together)
    now = most = 0

    def transfer() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        barrier.wait(30)
        with lock:
            now -= 1

    lanes.run([transfer] * count, time.monotonic() + 60)
    return most


def test_concurrency_is_limited_by_the_open_lanes() -> None:
    assert _most_at_once(TransferPool(4), 20, together=4) == 4


def test_concurrency_grows_as_transfers_succeed() -> None:
    lanes = TransferPool(8, initial=2)

    first = _most_at_once(lanes, 2, together=2)
    _most_at_once(lanes, 60)

    assert first == 2
    assert _most_at_once(lanes, 8, together=8) == lanes.limit == 8


def test_initial_read_parallelism_scales_with_cores() -> None:
    cores = len(os.sched_getaffinity(0))

    assert read_pool(1000).limit == INITIAL_READS_PER_CORE * cores
    assert read_pool(2).limit == 2
