"""The bookkeeper: books are kept without anybody asking for them."""

from __future__ import annotations

import asyncio

from histories import at, finished, launched, lost, ready, submitted
from holdfast.bookkeeping import keep_books
from holdfast.store.costs import By, CostBook, Question
from holdfast.store.journal import Journal
from holdfast.store.ledgers import BATCH, Ledgers
from sqlalchemy import Engine


def test_what_has_ended_is_in_the_books_soon(engine: Engine, journal: Journal) -> None:
    count = BATCH + 3
    for number in range(count):
        job = journal.submit(f"job-{number:02}", submitted())
        journal.append(job, [launched(1), ready(10), lost(20), finished(30)])
    ledgers = Ledgers(engine)

    async def keep() -> None:
        task = asyncio.create_task(keep_books(ledgers))
        async with asyncio.timeout(60):
            while ledgers.pending():  # noqa: ASYNC110 - nobody tells when it is done
                await asyncio.sleep(0)
        task.cancel()

    asyncio.run(keep())

    assert ledgers.settle(99) == 0
    told = CostBook(engine, ledgers).ask(Question(by=By.JOB, limit=5), at(99))
    assert (len(told.sums), told.left_out, told.total.jobs) == (5, count - 5, count)
    assert told.total.paid_micros == 10_000 * count
