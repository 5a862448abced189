"""The fair lock serves threads in the order of their requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Thread

import pytest
from holdfast.errors import StoreUnavailable
from holdfast.store.database import FairLock, reading, writing
from sqlalchemy import Engine, text
from sqlalchemy.pool import QueuePool
from worker.support.run_driver import wait_until

LONG_S = 60.0


def test_lock_is_acquired_in_request_order() -> None:
    turns, came = FairLock(), list[int]()

    def take(number: int) -> None:
        assert turns.acquire(LONG_S)
        came.append(number)
        turns.release()

    assert turns.acquire(0)
    threads = [Thread(target=take, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda count=number + 1: len(turns._waiting) == count)
    turns.release()
    for thread in threads:
        thread.join(LONG_S)

    assert came == [0, 1, 2, 3, 4]
    assert turns.acquire(0)


def test_timed_out_waiter_does_not_block_the_lock() -> None:
    turns = FairLock()
    assert turns.acquire(0)

    given_up = turns.acquire(0.05)
    turns.release()

    assert not given_up
    assert turns.acquire(0)


def test_lock_has_one_holder_at_a_time() -> None:
    turns, inside, most = FairLock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            assert turns.acquire(LONG_S)
            inside += 1
            most = max(most, inside)
            inside -= 1
            turns.release()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result(LONG_S)

    assert (most, inside) == (1, 0)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_writer_among_busy_writers_gets_the_lock(engine: Engine) -> None:
    """SQLite lets a blocked writer poll for the lock.

    It came too late each time, and was refused at last.
    """
    is_over, written = False, 0

    def hog() -> None:
        nonlocal written
        while not is_over:
            with writing(engine) as connection:
                connection.execute(text("UPDATE jobs SET seq = seq"))
                written += 1

    with ThreadPoolExecutor(3) as pool:
        hogs = [pool.submit(hog) for _ in range(3)]
        try:
            wait_until(lambda: written > 3)
            waits = []
            for _ in range(20):
                before = written
                with writing(engine):
                    waits.append(written - before)
        finally:
            is_over = True
        for done in hogs:
            done.result(LONG_S)

    # The threads in the queue, and one that finished as this one asked.
    assert max(waits) <= 4


def test_writers_wait_without_a_connection(engine: Engine) -> None:
    waiting = 20
    pool = engine.pool
    assert isinstance(pool, QueuePool)

    def write() -> None:
        with writing(engine) as connection:
            connection.execute(text("UPDATE jobs SET seq = seq"))

    with ThreadPoolExecutor(waiting) as threads:
        with writing(engine):
            done = [threads.submit(write) for _ in range(waiting)]
            turns: FairLock = engine.get_execution_options()["holdfast_turns"]
            wait_until(lambda: len(turns._waiting) == waiting)
            held = pool.checkedout()
        for each in done:
            each.result(LONG_S)

    assert held == 1


def test_every_request_thread_gets_a_connection(engine: Engine) -> None:
    with ExitStack() as held:
        for _ in range(40):
            held.enter_context(reading(engine))

        with reading(engine) as connection:
            assert connection.execute(text("SELECT 1")).scalar() == 1


def test_exhausted_pool_raises_store_unavailable(engine: Engine) -> None:
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    pool._timeout = pool._max_overflow = 0

    with ExitStack() as held:
        for _ in range(pool.size()):
            held.enter_context(reading(engine))
        with pytest.raises(StoreUnavailable, match="all connections of"), reading(engine):
            pass

    with reading(engine) as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1
